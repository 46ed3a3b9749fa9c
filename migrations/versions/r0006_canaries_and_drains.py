"""Canaries, Workers that an Operator drains, and a way to find what was closed lately."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "presets", sa.Column("canary", sa.Boolean(), nullable=False, server_default=sa.false())
    )
    op.create_table(
        "drains",
        sa.Column("worker_id", sa.String(128), nullable=False),
        sa.Column("added_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("worker_id", name="pk_drains"),
    )
    op.create_index("ix_directives_updated_at", "directives", ["updated_at"])


def downgrade() -> None:
    op.drop_index("ix_directives_updated_at", "directives")
    op.drop_table("drains")
    op.drop_column("presets", "canary")
