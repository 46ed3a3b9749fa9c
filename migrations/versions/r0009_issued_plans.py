"""How many plans were issued, by which one that was made before the last of them is told."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

COUNTER = "issued_plans"


def upgrade() -> None:
    counters = sa.table("counters", sa.column("name", sa.String), sa.column("value", sa.BigInteger))
    op.bulk_insert(counters, [{"name": COUNTER, "value": 0}])


def downgrade() -> None:
    op.execute(sa.text("DELETE FROM counters WHERE name = :name").bindparams(name=COUNTER))
