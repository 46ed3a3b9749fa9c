"""Digests of Shards: which weights a Worker holds under a Variant's name."""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    digest = sa.Column("digest", sa.String(64), nullable=False, server_default="")
    op.add_column("worker_shards", digest)


def downgrade() -> None:
    op.drop_column("worker_shards", "digest")
