"""The first tables: pictures, runs, attributions, ranked neurons, concepts and memberships."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "concepts",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("model_revision", sa.String(length=80), nullable=False),
        sa.Column("library_revision", sa.String(length=80), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("kind", sa.String(length=40), nullable=False),
        sa.Column("probes", sa.Integer(), nullable=False),
        sa.Column("cardinality", sa.Float(), nullable=False),
        sa.Column("members", sa.Integer(), nullable=False),
        sa.Column("layers", sa.JSON(), nullable=False),
        sa.Column("figures", sa.JSON(), nullable=False),
        sa.Column("recipe", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_concepts")),
        sa.UniqueConstraint("model_revision", "name", name=op.f("uq_concepts_model_revision")),
    )
    op.create_table(
        "pictures",
        sa.Column("hash", sa.String(length=64), nullable=False),
        sa.Column("width", sa.Integer(), nullable=False),
        sa.Column("height", sa.Integer(), nullable=False),
        sa.Column("notes", sa.JSON(), nullable=False),
        sa.Column("created", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("hash", name=op.f("pk_pictures")),
    )
    op.create_table(
        "memberships",
        sa.Column("concept_id", sa.Integer(), nullable=False),
        sa.Column("layer", sa.Integer(), nullable=False),
        sa.Column("index", sa.Integer(), nullable=False),
        sa.Column("mu", sa.Float(), nullable=False),
        sa.ForeignKeyConstraint(
            ["concept_id"], ["concepts.id"], name=op.f("fk_memberships_concept_id_concepts"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("concept_id", "layer", "index", name=op.f("pk_memberships")),
    )
    op.create_index("ix_memberships_neuron", "memberships", ["layer", "index", "concept_id", "mu"], unique=False)
    op.create_table(
        "runs",
        sa.Column("id", sa.String(length=16), nullable=False),
        sa.Column("identity", sa.String(length=80), nullable=False),
        sa.Column("state", sa.String(length=10), nullable=False),
        sa.Column("stop_requested", sa.Boolean(), nullable=False),
        sa.Column("question", sa.Text(), nullable=False),
        sa.Column("picture_hash", sa.String(length=64), nullable=True),
        sa.Column("max_new_tokens", sa.Integer(), nullable=False),
        sa.Column("method", sa.String(length=24), nullable=False),
        sa.Column("model", sa.JSON(), nullable=True),
        sa.Column("model_revision", sa.String(length=80), nullable=False),
        sa.Column("parent_id", sa.String(length=16), nullable=True),
        sa.Column("steering", sa.JSON(), nullable=True),
        sa.Column("answer", sa.JSON(), nullable=True),
        sa.Column("pair", sa.JSON(), nullable=True),
        sa.Column("control", sa.JSON(), nullable=True),
        sa.Column("timing", sa.JSON(), nullable=True),
        sa.Column("error", sa.Text(), nullable=False),
        sa.Column("remedy", sa.Text(), nullable=False),
        sa.Column("queued", sa.DateTime(timezone=True), nullable=False),
        sa.Column("created", sa.DateTime(timezone=True), nullable=False),
        sa.Column("started", sa.DateTime(timezone=True), nullable=True),
        sa.Column("finished", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(["parent_id"], ["runs.id"], name=op.f("fk_runs_parent_id_runs"), ondelete="CASCADE"),
        sa.ForeignKeyConstraint(["picture_hash"], ["pictures.hash"], name=op.f("fk_runs_picture_hash_pictures")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_runs")),
        sa.UniqueConstraint("identity", name=op.f("uq_runs_identity")),
    )
    op.create_index("ix_runs_created", "runs", ["created"], unique=False)
    op.create_index(op.f("ix_runs_parent_id"), "runs", ["parent_id"], unique=False)
    op.create_index("ix_runs_state_queued", "runs", ["state", "queued"], unique=False)
    op.create_table(
        "attributions",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("run_id", sa.String(length=16), nullable=False),
        sa.Column("start", sa.Integer(), nullable=False),
        sa.Column("end", sa.Integer(), nullable=False),
        sa.Column("method", sa.String(length=24), nullable=False),
        sa.Column("state", sa.String(length=10), nullable=False),
        sa.Column("value", sa.Float(), nullable=True),
        sa.Column("summary", sa.JSON(), nullable=True),
        sa.Column("arrays", sa.LargeBinary(), nullable=True),
        sa.Column("error", sa.Text(), nullable=False),
        sa.Column("queued", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_attributions_run_id_runs"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_attributions")),
        sa.UniqueConstraint("run_id", "start", "end", "method", name=op.f("uq_attributions_run_id")),
    )
    op.create_index("ix_attributions_state_queued", "attributions", ["state", "queued"], unique=False)
    op.create_table(
        "watchers",
        sa.Column("run_id", sa.String(length=16), nullable=False),
        sa.Column("panel", sa.String(length=40), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_watchers_run_id_runs"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", "panel", name=op.f("pk_watchers")),
    )
    op.create_index(op.f("ix_watchers_panel"), "watchers", ["panel"], unique=False)
    op.create_table(
        "neuron_scores",
        sa.Column("attribution_id", sa.Integer(), nullable=False),
        sa.Column("rank", sa.Integer(), nullable=False),
        sa.Column("layer", sa.Integer(), nullable=False),
        sa.Column("index", sa.Integer(), nullable=False),
        sa.Column("score", sa.Float(), nullable=False),
        sa.Column("image", sa.Float(), nullable=False),
        sa.Column("question", sa.Float(), nullable=False),
        sa.Column("template", sa.Float(), nullable=False),
        sa.Column("answer", sa.Float(), nullable=False),
        sa.Column("peak", sa.Float(), nullable=False),
        sa.ForeignKeyConstraint(
            ["attribution_id"],
            ["attributions.id"],
            name=op.f("fk_neuron_scores_attribution_id_attributions"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("attribution_id", "rank", name=op.f("pk_neuron_scores")),
    )
    op.create_index("ix_neuron_scores_neuron", "neuron_scores", ["layer", "index"], unique=False)


def downgrade() -> None:
    op.drop_index("ix_neuron_scores_neuron", table_name="neuron_scores")
    op.drop_table("neuron_scores")
    op.drop_index(op.f("ix_watchers_panel"), table_name="watchers")
    op.drop_table("watchers")
    op.drop_index("ix_attributions_state_queued", table_name="attributions")
    op.drop_table("attributions")
    op.drop_index("ix_runs_state_queued", table_name="runs")
    op.drop_index(op.f("ix_runs_parent_id"), table_name="runs")
    op.drop_index("ix_runs_created", table_name="runs")
    op.drop_table("runs")
    op.drop_index("ix_memberships_neuron", table_name="memberships")
    op.drop_table("memberships")
    op.drop_table("pictures")
    op.drop_table("concepts")
