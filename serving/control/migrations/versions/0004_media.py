"""Whether an engine's model takes media."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Engines of before take none until they say so."""
    op.add_column("engines", sa.Column("media", sa.Boolean, nullable=False, server_default=sa.false()))


def downgrade() -> None:
    """Drops it."""
    op.drop_column("engines", "media")
