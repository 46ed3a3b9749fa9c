"""Limits of tokens: how many the answers of a key may cost a minute."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("api_keys", sa.Column("tokens_per_minute", sa.Integer, nullable=True))
    busy = sa.Column("tokens_busy_until", sa.Double, nullable=False, server_default="0")
    op.add_column("api_keys", busy)


def downgrade() -> None:
    with op.batch_alter_table("api_keys") as table:
        table.drop_column("tokens_busy_until")
        table.drop_column("tokens_per_minute")
