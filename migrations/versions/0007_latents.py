"""Latents: notes about them, their memberships in concepts, and the SAEs that people attached."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "latent_notes",
        sa.Column("sae_id", sa.String(length=80), nullable=False),
        sa.Column("index", sa.Integer(), nullable=False),
        sa.Column("label", sa.String(length=80), nullable=False),
        sa.Column("note", sa.Text(), nullable=False),
        sa.Column("changed", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("sae_id", "index", name=op.f("pk_latent_notes")),
    )
    op.create_table(
        "latent_concepts",
        sa.Column("sae_id", sa.String(length=80), nullable=False),
        sa.Column("concept", sa.String(length=200), nullable=False),
        sa.Column("fingerprint", sa.String(length=64), nullable=False),
        sa.Column("recipe", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("sae_id", "concept", name=op.f("pk_latent_concepts")),
    )
    op.create_table(
        "latent_memberships",
        sa.Column("sae_id", sa.String(length=80), nullable=False),
        sa.Column("concept", sa.String(length=200), nullable=False),
        sa.Column("index", sa.Integer(), nullable=False),
        sa.Column("mu", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("sae_id", "concept", "index", name=op.f("pk_latent_memberships")),
    )
    op.create_index("ix_latent_memberships_latent", "latent_memberships", ["sae_id", "index"])
    op.create_table(
        "attached_saes",
        sa.Column("id", sa.String(length=80), nullable=False),
        sa.Column("model_revision", sa.String(length=80), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("layer", sa.Integer(), nullable=True),
        sa.Column("site", sa.String(length=16), nullable=True),
        sa.Column("created", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", "model_revision", name=op.f("pk_attached_saes")),
    )


def downgrade() -> None:
    op.drop_table("attached_saes")
    op.drop_index("ix_latent_memberships_latent", table_name="latent_memberships")
    op.drop_table("latent_memberships")
    op.drop_table("latent_concepts")
    op.drop_table("latent_notes")
