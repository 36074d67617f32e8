"""Sets of questions that people brought, and the parts of evaluations as they come."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "question_sets",
        sa.Column("hash", sa.String(length=64), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("format", sa.String(length=16), nullable=False),
        sa.Column("metric", sa.String(length=16), nullable=False),
        sa.Column("files", sa.JSON(), nullable=False),
        sa.Column("questions", sa.Integer(), nullable=False),
        sa.Column("kinds", sa.JSON(), nullable=False),
        sa.Column("conditions", sa.JSON(), nullable=False),
        sa.Column("bad", sa.JSON(), nullable=False),
        sa.Column("left_out", sa.Integer(), nullable=False),
        sa.Column("created", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("hash", name=op.f("pk_question_sets")),
    )
    op.create_table(
        "evaluation_parts",
        sa.Column("evaluation", sa.String(length=80), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("place", sa.Integer(), nullable=False),
        sa.Column("value", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("evaluation", "key", name=op.f("pk_evaluation_parts")),
        sa.ForeignKeyConstraint(
            ["evaluation"], ["jobs.identity"], ondelete="CASCADE", name=op.f("fk_evaluation_parts_evaluation_jobs")
        ),
    )


def downgrade() -> None:
    op.drop_table("evaluation_parts")
    op.drop_table("question_sets")
