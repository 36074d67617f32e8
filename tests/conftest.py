"""Fixtures that every folder of tests may use; nothing here imports torch or the app."""

import itertools
import os
from collections.abc import Iterator
from typing import Any

# Before anything imports torch: one thread (on tiny models a second costs more than it brings), and no model hub.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_OFFLINE", "1")

import psycopg
import pytest

from tests.support import find_chromium, find_postgres, missing, postgres_cluster


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


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Where tests are dealt to several processes: all that open a browser go to one, which has one browser then; the
    others stay together by file, for what their fixtures load."""
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            return "browser" if "/e2e/" in file else file

    return ByFile(config, log)


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
