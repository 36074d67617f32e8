"""The migrations build the tables that the app declares, on SQLite and on Postgres, and the app works on both."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from app.database import Database, alembic_config
from app.tables import Base
from tests.app.conftest import serving
from tests.support import ROOT


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'sfumato.db'}"
    return str(request.getfixturevalue("postgres_url"))


@pytest.fixture
def database(url: str) -> Iterator[Database]:
    made = Database(url)
    made.upgrade()
    yield made
    made.close()


def test_models_and_migrations_agree(database: Database) -> None:
    with database.engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True, "compare_server_default": True})
        assert compare_metadata(context, Base.metadata) == []


def test_upgrading_twice_changes_nothing(database: Database) -> None:
    database.upgrade()
    with database.engine.connect() as connection:
        assert MigrationContext.configure(connection).get_current_revision() == "0007"


def test_down_to_nothing_and_up_again(database: Database) -> None:
    with database.engine.execution_options(sfumato_writes=True).begin() as connection:
        config = alembic_config()
        config.attributes["connection"] = connection
        command.downgrade(config, "base")
    assert set(sqlalchemy.inspect(database.engine).get_table_names()) <= {"alembic_version"}
    database.upgrade()
    assert set(sqlalchemy.inspect(database.engine).get_table_names()) >= set(Base.metadata.tables)


def test_there_is_one_line_of_migrations() -> None:
    scripts = ScriptDirectory.from_config(alembic_config())
    assert len(scripts.get_heads()) == 1
    for path in (ROOT / "migrations" / "versions").glob("*.py"):
        assert "import app" not in path.read_text(), "a migration must stand without today's app"


def test_the_whole_flow(url: str, tmp_path: Path) -> None:
    """Ask, look, steer, start again: the same on both databases."""
    with serving(tmp_path / "data", database_url=url) as browser:
        run = browser.ask("What is on the right?")
        answer = browser.data(run)["answer"]
        child = browser.turn(run, answer, -1)
        assert browser.settled(child)["answer"] != answer
        assert browser.ask("What is on the right?") == run
        assert "event: end" in browser.http.get(f"{run}/events?method=direct").text
    with serving(tmp_path / "data", database_url=url) as browser:
        page = browser.http.get(f"{run}?steer={child.rsplit('/', 1)[1]}&method=direct").text
        assert re.search(r"logit [+−\d]", page)
        assert answer in page
