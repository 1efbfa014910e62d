"""Keys, policies, engines, references, swaps, and the snapshot's revision."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Makes all tables, and the first revision."""
    revisions = op.create_table(
        "revision",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("value", sa.Integer, nullable=False),
    )
    op.bulk_insert(revisions, [{"id": 1, "value": 1}])
    op.create_table(
        "keys",
        sa.Column("key_id", sa.String(64), primary_key=True),
        sa.Column("name", sa.String(256), nullable=False),
        sa.Column("digest", sa.String(64), nullable=False, unique=True),
        sa.Column("roles", sa.JSON, nullable=False),
        sa.Column("train", sa.Boolean, nullable=False),
        sa.Column("requests_per_minute", sa.Integer),
        sa.Column("concurrency", sa.Integer),
        sa.Column("created_at", sa.Float, nullable=False),
        sa.Column("revoked_at", sa.Float),
    )
    op.create_table(
        "policies",
        sa.Column("name", sa.String(256), primary_key=True),
        sa.Column("desired", sa.JSON, nullable=False),
        sa.Column("under_evaluation", sa.JSON),
        sa.Column("capture", sa.String(32), nullable=False),
        sa.Column("sampling", sa.JSON, nullable=False),
    )
    op.create_table(
        "engines",
        sa.Column("engine_id", sa.String(256), primary_key=True),
        sa.Column("policy", sa.String(256), nullable=False, index=True),
        sa.Column("url", sa.Text, nullable=False),
        sa.Column("token", sa.Text, nullable=False),
        sa.Column("role", sa.String(32), nullable=False),
        sa.Column("state", sa.String(32), nullable=False),
        sa.Column("version", sa.String(256), nullable=False),
        sa.Column("build", sa.Text, nullable=False),
        sa.Column("max_model_len", sa.Integer, nullable=False),
        sa.Column("error", sa.Text, nullable=False),
        sa.Column("target", sa.JSON),
    )
    op.create_table(
        "references_",
        sa.Column("policy", sa.String(256), primary_key=True),
        sa.Column("version", sa.String(256), primary_key=True),
        sa.Column("build", sa.String(512), primary_key=True),
        sa.Column("body", sa.JSON, nullable=False),
    )
    op.create_table(
        "swaps",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=True),
        sa.Column("policy", sa.String(256), nullable=False, index=True),
        sa.Column("started_at", sa.Float, nullable=False, index=True),
        sa.Column("body", sa.JSON, nullable=False),
    )


def downgrade() -> None:
    """Drops them."""
    for table in ("swaps", "references_", "engines", "policies", "keys", "revision"):
        op.drop_table(table)
