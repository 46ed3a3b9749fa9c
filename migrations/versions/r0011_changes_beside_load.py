"""Which change of a Worker was the last one of more than its load."""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

COLUMN = "changed_beside_load"


def upgrade() -> None:
    column = sa.Column(COLUMN, sa.BigInteger, nullable=False, server_default="0")
    op.add_column("workers", column)
    workers = sa.table("workers", sa.column("changed"), sa.column(COLUMN))
    op.execute(sa.update(workers).values({COLUMN: workers.c.changed}))


def downgrade() -> None:
    op.drop_column("workers", COLUMN)
