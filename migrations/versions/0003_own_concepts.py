"""Concepts of a person's own: their probes, memberships' intervals, and what people write about neurons."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "own_concepts",
        sa.Column("id", sa.String(length=16), nullable=False),
        sa.Column("model_revision", sa.String(length=80), nullable=False),
        sa.Column("name", sa.String(length=80), nullable=False),
        sa.Column("kind", sa.String(length=40), nullable=False),
        sa.Column("forms", sa.JSON(), nullable=False),
        sa.Column("contrast", sa.JSON(), nullable=False),
        sa.Column("map", sa.String(length=24), nullable=False),
        sa.Column("quantile", sa.Float(), nullable=False),
        sa.Column("mode", sa.String(length=24), nullable=False),
        sa.Column("expression", sa.Text(), nullable=False),
        sa.Column("family", sa.String(length=24), nullable=False),
        sa.Column("created", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_own_concepts")),
        sa.UniqueConstraint("model_revision", "name", name=op.f("uq_own_concepts_model_revision")),
    )
    op.create_table(
        "probes",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("concept_id", sa.String(length=16), nullable=False),
        sa.Column("source", sa.String(length=200), nullable=False),
        sa.Column("picture_hash", sa.String(length=64), nullable=True),
        sa.Column("question", sa.Text(), nullable=False),
        sa.Column("answer", sa.Text(), nullable=False),
        sa.Column("says", sa.Text(), nullable=False),
        sa.Column("box", sa.JSON(), nullable=True),
        sa.Column("against", sa.Text(), nullable=True),
        sa.Column("shares", sa.LargeBinary(), nullable=True),
        sa.Column("logprob", sa.Float(), nullable=True),
        sa.Column("correct", sa.Boolean(), nullable=True),
        sa.Column("refused", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["concept_id"], ["own_concepts.id"], name=op.f("fk_probes_concept_id_own_concepts"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(["picture_hash"], ["pictures.hash"], name=op.f("fk_probes_picture_hash_pictures")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_probes")),
    )
    op.create_index(op.f("ix_probes_concept_id"), "probes", ["concept_id"], unique=False)
    op.create_table(
        "neuron_notes",
        sa.Column("model_revision", sa.String(length=80), nullable=False),
        sa.Column("layer", sa.Integer(), nullable=False),
        sa.Column("index", sa.Integer(), nullable=False),
        sa.Column("label", sa.String(length=80), nullable=False),
        sa.Column("note", sa.Text(), nullable=False),
        sa.Column("changed", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("model_revision", "layer", "index", name=op.f("pk_neuron_notes")),
    )


def downgrade() -> None:
    op.drop_table("neuron_notes")
    op.drop_index(op.f("ix_probes_concept_id"), table_name="probes")
    op.drop_table("probes")
    op.drop_table("own_concepts")
