"""Fixtures that every folder of tests may use; nothing here imports torch or the app."""

import itertools
import os
from collections.abc import Iterator

# Before anything imports torch: one thread (on tiny models a second costs more than it brings), and no model hub.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_OFFLINE", "1")

import psycopg
import pytest

from tests.support import ROOT, find_chromium, find_postgres, missing, postgres_cluster


@pytest.fixture(scope="session")
def chromium_path() -> str:
    """The browser for Playwright's `executable_path`."""
    return find_chromium() or missing("Chromium")


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """A throwaway PostgreSQL for the session: a URL with `{database}` in place of a database's name."""
    programs = find_postgres() or missing("PostgreSQL")
    with postgres_cluster(programs) as url:
        yield url


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Where tests are dealt to several processes (`--dist loadgroup`): all that open a browser go to one, which then has
    one browser; the others stay together by file, for what their fixtures load."""
    for item in items:
        folder = item.path.relative_to(ROOT / "tests").parts[0]
        item.add_marker(pytest.mark.xdist_group("browser" if folder == "e2e" else item.path.name))


_numbers = itertools.count(1)


@pytest.fixture
def postgres_url(postgres_server: str) -> Iterator[str]:
    """An empty database of its own for one test, as a SQLAlchemy URL (`postgresql+psycopg://…`)."""
    name = f"sfumato_{next(_numbers)}"
    admin = postgres_server.format(database="postgres").replace("+psycopg", "")
    with psycopg.connect(admin, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
    yield postgres_server.format(database=name)
    with psycopg.connect(admin, autocommit=True) as connection:
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())
