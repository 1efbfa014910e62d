"""What an engine refuses to take in."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Engines of before refuse nothing until they say so."""
    op.add_column("engines", sa.Column("refusal", sa.JSON))


def downgrade() -> None:
    """Drops it."""
    op.drop_column("engines", "refusal")
