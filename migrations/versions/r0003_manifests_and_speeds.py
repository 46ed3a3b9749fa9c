"""What is known of a preset's bytes, and a Worker's speeds apart."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

SPEEDS = (
    "decode_tokens_per_sec_per_layer",
    "prefill_tokens_per_sec_per_layer",
    "memory_bytes_per_sec",
    "link_bytes_per_sec",
)


def upgrade() -> None:
    op.create_table(
        "manifests",
        sa.Column("preset", sa.String(200), nullable=False),
        sa.Column("content", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["preset"], ["presets.name"], name="fk_manifests_preset", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("preset", name="pk_manifests"),
    )
    for speed in SPEEDS:
        op.add_column("workers", sa.Column(speed, sa.Double(), nullable=False, server_default="0"))
    name = sa.Column("speeds_of", sa.String(200), nullable=False, server_default="")
    op.add_column("workers", name)


def downgrade() -> None:
    for column in (*SPEEDS, "speeds_of"):
        op.drop_column("workers", column)
    op.drop_table("manifests")
