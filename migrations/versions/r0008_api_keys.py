"""API keys: who may ask, for which models, and how often."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "api_keys",
        sa.Column("name", sa.String(64), primary_key=True),
        sa.Column("key_sha256", sa.String(64), nullable=False, unique=True),
        sa.Column("shown", sa.String(16), nullable=False),
        sa.Column("models", sa.JSON, nullable=True),
        sa.Column("requests_per_minute", sa.Integer, nullable=True),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("expires_at", sa.Double, nullable=True),
        sa.Column("revoked_at", sa.Double, nullable=True),
        sa.Column("busy_until", sa.Double, nullable=False),
    )


def downgrade() -> None:
    op.drop_table("api_keys")
