"""How often each Session was opened again, and which Workers are about to leave."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "incarnations",
        sa.Column("session_id", sa.String(64), nullable=False),
        sa.Column("incarnation", sa.Integer(), nullable=False),
        sa.Column("head_since", sa.Integer(), nullable=False),
        sa.Column("renewed_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("session_id", name="pk_incarnations"),
    )
    op.create_index("ix_incarnations_renewed_at", "incarnations", ["renewed_at"])
    leaving: sa.Column[bool] = sa.Column(
        "leaving", sa.Boolean(), nullable=False, server_default=sa.false()
    )
    op.add_column("workers", leaving)


def downgrade() -> None:
    op.drop_column("workers", "leaving")
    op.drop_table("incarnations")
