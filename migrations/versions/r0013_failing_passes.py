"""Since when planning passes fail."""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    since = sa.Column("failing_since", sa.Double, nullable=False, server_default="0")
    op.add_column("leadership", since)


def downgrade() -> None:
    op.drop_column("leadership", "failing_since")
