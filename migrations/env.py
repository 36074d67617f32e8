"""Alembic's environment. The app hands over its connection; from the command line SFUMATO_DATABASE_URL (or the default
database) is used."""

from typing import Any, Literal

from alembic import context
from alembic.autogenerate.api import AutogenContext
from sqlalchemy import Connection

from app.database import Database
from app.settings import Settings
from app.tables import Base, Utc


def render(kind: str, item: Any, _context: AutogenContext) -> str | Literal[False]:
    """Migrations must stand without today's app: its column types are written as what they are in SQL."""
    return "sa.DateTime(timezone=True)" if kind == "type" and isinstance(item, Utc) else False


def migrate(connection: Connection) -> None:
    context.configure(connection=connection, target_metadata=Base.metadata, render_item=render, compare_type=True)
    with context.begin_transaction():
        context.run_migrations()


given: Connection | None = context.config.attributes.get("connection")
if given is not None:
    migrate(given)
else:
    database = Database(Settings().url)
    with database.engine.execution_options(sfumato_writes=True).begin() as opened:
        migrate(opened)
    database.close()
