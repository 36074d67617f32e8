"""Attributions of any target, and long jobs."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("attributions") as table:
        table.add_column(sa.Column("key", sa.String(length=80), nullable=True))
        table.add_column(sa.Column("target", sa.JSON(), nullable=True))
    attributions = sa.table(
        "attributions", sa.column("key", sa.String), sa.column("start", sa.Integer), sa.column("end", sa.Integer)
    )
    spelled = sa.cast(attributions.c.start, sa.String) + "-" + sa.cast(attributions.c.end, sa.String)
    op.execute(attributions.update().values(key=spelled))
    with op.batch_alter_table("attributions") as table:
        table.alter_column("key", existing_type=sa.String(length=80), nullable=False)
        table.drop_constraint("uq_attributions_run_id", type_="unique")
        table.create_unique_constraint("uq_attributions_run_id", ["run_id", "key", "method"])
    op.create_table(
        "jobs",
        sa.Column("id", sa.String(length=16), nullable=False),
        sa.Column("identity", sa.String(length=80), nullable=False),
        sa.Column("kind", sa.String(length=24), nullable=False),
        sa.Column("run_id", sa.String(length=16), nullable=True),
        sa.Column("params", sa.JSON(), nullable=False),
        sa.Column("state", sa.String(length=10), nullable=False),
        sa.Column("stop_requested", sa.Boolean(), nullable=False),
        sa.Column("done", sa.Integer(), nullable=False),
        sa.Column("total", sa.Integer(), nullable=False),
        sa.Column("result", sa.JSON(), nullable=True),
        sa.Column("arrays", sa.LargeBinary(), nullable=True),
        sa.Column("error", sa.Text(), nullable=False),
        sa.Column("queued", sa.DateTime(timezone=True), nullable=False),
        sa.Column("started", sa.DateTime(timezone=True), nullable=True),
        sa.Column("finished", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_jobs_run_id_runs"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_jobs")),
        sa.UniqueConstraint("identity", name=op.f("uq_jobs_identity")),
    )
    op.create_index("ix_jobs_state_queued", "jobs", ["state", "queued"], unique=False)
    op.create_index(op.f("ix_jobs_run_id"), "jobs", ["run_id"], unique=False)


def downgrade() -> None:
    op.drop_index(op.f("ix_jobs_run_id"), table_name="jobs")
    op.drop_index("ix_jobs_state_queued", table_name="jobs")
    op.drop_table("jobs")
    attributions = sa.table("attributions", sa.column("key", sa.String))
    op.execute(attributions.delete().where(attributions.c.key.contains(":")))
    with op.batch_alter_table("attributions") as table:
        table.drop_constraint("uq_attributions_run_id", type_="unique")
        table.create_unique_constraint("uq_attributions_run_id", ["run_id", "start", "end", "method"])
        table.drop_column("target")
        table.drop_column("key")
