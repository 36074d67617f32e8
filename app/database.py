"""The database: one URL, SQLite or Postgres through the same code.

`read()` opens a reading transaction, `write()` a writing one. On SQLite a transaction that reads first and writes later
fails when another one has written in between, so a writing one takes the lock at its start (BEGIN IMMEDIATE); on
Postgres an advisory lock lets one writer in at a time. Readers wait for nobody.
"""

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import sqlalchemy
from alembic import command
from alembic.config import Config
from fastapi import Depends, Request
from sqlalchemy import event
from sqlalchemy.exc import ArgumentError
from sqlalchemy.orm import Session, sessionmaker

BUSY_SECONDS = 30
WRITERS = 5_736_201
"""The advisory lock's number."""
HOME = Path(__file__).resolve().parent.parent


class Database:
    """An engine with its two kinds of session. Raises ArgumentError for a database that could not be shared."""

    def __init__(self, url: str) -> None:
        made = sqlalchemy.make_url(url)
        arguments: dict[str, Any] = {}
        if made.get_backend_name() == "sqlite":
            name = made.database or ":memory:"
            if ":memory:" in name or "mode=memory" in made.render_as_string():
                raise ArgumentError(
                    "an SQLite database in memory is a different one for each thread. Name a file, for example "
                    "sqlite:///sfumato.db."
                )
            Path(name).parent.mkdir(parents=True, exist_ok=True)
            arguments = {"connect_args": {"timeout": BUSY_SECONDS, "check_same_thread": False}}
        self.engine = sqlalchemy.create_engine(made, pool_pre_ping=True, pool_size=20, max_overflow=40, **arguments)
        if made.get_backend_name() == "sqlite":
            event.listen(self.engine, "connect", _on_connect)
            event.listen(self.engine, "begin", _on_begin)
        self._readers = sessionmaker(self.engine, expire_on_commit=False)
        self._writers = sessionmaker(self.engine.execution_options(sfumato_writes=True), expire_on_commit=False)

    @contextlib.contextmanager
    def read(self) -> Iterator[Session]:
        """One reading transaction."""
        with self._readers() as session:
            yield session

    @contextlib.contextmanager
    def write(self) -> Iterator[Session]:
        """One writing transaction: committed at the end of the block, rolled back by any exception in it."""
        with self._writers.begin() as session:
            if self.engine.dialect.name == "postgresql":
                session.execute(sqlalchemy.text(f"SELECT pg_advisory_xact_lock({WRITERS})"))
            yield session

    def upgrade(self) -> None:
        """Bring the schema to the newest migration."""
        with self.engine.execution_options(sfumato_writes=True).begin() as connection:
            config = alembic_config()
            config.attributes["connection"] = connection
            command.upgrade(config, "head")

    def close(self) -> None:
        self.engine.dispose()


def alembic_config() -> Config:
    """Alembic's configuration from pyproject.toml, independent of the current folder."""
    config = Config(toml_file=str(HOME / "pyproject.toml"))
    config.set_main_option("script_location", str(HOME / "migrations").replace("%", "%%"))
    return config


def _on_connect(connection: sqlite3.Connection, _record: object) -> None:
    connection.isolation_level = None  # the driver must not begin transactions of its own: _on_begin does
    for pragma in ("journal_mode=WAL", f"busy_timeout={BUSY_SECONDS * 1000}", "foreign_keys=ON", "synchronous=NORMAL"):
        connection.execute(f"PRAGMA {pragma}")


def _on_begin(connection: sqlalchemy.Connection) -> None:
    writes = connection.get_execution_options().get("sfumato_writes")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _reader(request: Request) -> Iterator[Session]:
    with request.app.state.services.database.read() as session:
        yield session


Reader = Annotated[Session, Depends(_reader, scope="function")]
"""A request's reading session. Writing is done by the use cases, each in its own transaction, so that what the
worker is told about is committed."""
