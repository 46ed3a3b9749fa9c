"""Variants whose weights are a GGUF file."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("variants", sa.Column("gguf", sa.Text(), nullable=False, server_default=""))
    digest = sa.Column("gguf_sha256", sa.String(64), nullable=False, server_default="")
    op.add_column("variants", digest)


def downgrade() -> None:
    op.drop_column("variants", "gguf_sha256")
    op.drop_column("variants", "gguf")
