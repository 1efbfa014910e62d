"""What a policy redacts, and which subjects opted out of training."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Policies of before redact nothing, and nobody had opted out."""
    op.add_column("policies", sa.Column("redaction", sa.JSON))
    op.create_table(
        "opted_out",
        sa.Column("subject", sa.String(64), primary_key=True),
        sa.Column("since", sa.Float, nullable=False),
    )


def downgrade() -> None:
    """Drops both."""
    op.drop_table("opted_out")
    op.drop_column("policies", "redaction")
