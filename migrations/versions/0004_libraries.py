"""Exact memberships of each concept, and how far the concepts of a library share their neurons."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "libraries",
        sa.Column("model_revision", sa.String(length=80), nullable=False),
        sa.Column("revision", sa.String(length=80), nullable=False),
        sa.Column("names", sa.JSON(), nullable=False),
        sa.Column("order", sa.JSON(), nullable=False),
        sa.Column("shared", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("model_revision", name=op.f("pk_libraries")),
    )
    with op.batch_alter_table("concepts") as batch:
        batch.add_column(sa.Column("fingerprint", sa.String(length=64), nullable=True))
        batch.add_column(sa.Column("exact", sa.LargeBinary(), nullable=True))
    # Concepts of before have no exact memberships: of another revision, they are copied anew when the model is loaded.
    op.execute("UPDATE concepts SET library_revision = ''")


def downgrade() -> None:
    with op.batch_alter_table("concepts") as batch:
        batch.drop_column("exact")
        batch.drop_column("fingerprint")
    op.drop_table("libraries")
