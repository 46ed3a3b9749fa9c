"""Which change of a Worker was the last one of its load alone, and which of more than that."""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

COLUMNS = ("changed_beside_load", "changed_by_load")


def upgrade() -> None:
    for name in COLUMNS:
        op.add_column("workers", sa.Column(name, sa.BigInteger, nullable=False, server_default="0"))


def downgrade() -> None:
    for name in COLUMNS:
        op.drop_column("workers", name)
