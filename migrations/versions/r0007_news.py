"""How often a Tracker or a command has changed what the others should hear of."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

COUNTER = "news"


def upgrade() -> None:
    counters = sa.table("counters", sa.column("name", sa.String), sa.column("value", sa.BigInteger))
    op.bulk_insert(counters, [{"name": COUNTER, "value": 0}])


def downgrade() -> None:
    op.execute(sa.text("DELETE FROM counters WHERE name = :name").bindparams(name=COUNTER))
