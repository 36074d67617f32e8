# Sfumato in a container: `docker compose up` (see docker-compose.yml). A CPU image; the built-in model is inside.
FROM python:3.12-slim

# On x86 without a GPU, PyTorch's CPU index saves gigabytes: --build-arg PIP_EXTRA_INDEX_URL=…
ARG PIP_EXTRA_INDEX_URL=

WORKDIR /srv/sfumato
COPY pyproject.toml constraints.txt README.md LICENSE NOTICE ./
COPY app app
COPY engine engine
COPY templates templates
COPY static static
COPY migrations migrations
RUN pip install --no-cache-dir --constraint constraints.txt --editable . \
    && useradd --create-home sfumato && mkdir /data && chown sfumato /data

USER sfumato
ENV SFUMATO_DATA_DIR=/data
VOLUME /data
EXPOSE 8000
# Inside the container every interface; docker-compose.yml publishes it on this machine's loopback only.
CMD ["sfumato", "serve", "--host", "0.0.0.0", "--port", "8000"]
