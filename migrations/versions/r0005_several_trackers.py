"""Leadership, pins, demand, aliases; what Workers measure of each other; numbered changes."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

COUNTER = "mesh_change"


def upgrade() -> None:
    for column in _worker_columns():
        op.add_column("workers", column)
    op.create_index("ix_workers_changed", "workers", ["changed"])
    op.add_column("directives", sa.Column("why", sa.Text(), nullable=False, server_default=""))
    _tables()
    counters = sa.table("counters", sa.column("name", sa.String), sa.column("value", sa.BigInteger))
    op.bulk_insert(counters, [{"name": COUNTER, "value": 0}])


def downgrade() -> None:
    op.execute(sa.text("DELETE FROM counters WHERE name = :name").bindparams(name=COUNTER))
    for table in ("aliases", "leadership", "demand", "pins"):
        op.drop_table(table)
    op.drop_column("directives", "why")
    # Before this revision a Worker that said goodbye left no row behind.
    op.execute("DELETE FROM directives WHERE worker_id IN (SELECT id FROM workers WHERE gone)")
    op.execute("DELETE FROM worker_shards WHERE worker_id IN (SELECT id FROM workers WHERE gone)")
    op.execute("DELETE FROM workers WHERE gone")
    op.drop_index("ix_workers_changed", "workers")
    for column in reversed(_worker_columns()):
        op.drop_column("workers", column.name)


def _worker_columns() -> list[sa.Column[object]]:
    return [
        sa.Column("region", sa.String(200), nullable=False, server_default=""),
        sa.Column("queued", sa.Integer(), nullable=False, server_default="0"),
        sa.Column("download_bytes_per_sec", sa.Double(), nullable=False, server_default="0"),
        sa.Column("round_trips", sa.JSON(), nullable=False, server_default="[]"),
        sa.Column("gone", sa.Boolean(), nullable=False, server_default=sa.false()),
        sa.Column("changed", sa.BigInteger(), nullable=False, server_default="0"),
    ]


def _tables() -> None:
    op.create_table(
        "pins",
        sa.Column("worker_id", sa.String(128), nullable=False),
        sa.Column("model", sa.String(200), nullable=False),
        sa.Column("quantization", sa.String(32), nullable=False),
        sa.Column("start_layer", sa.Integer(), nullable=False),
        sa.Column("end_layer", sa.Integer(), nullable=False),
        sa.Column("added_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("worker_id", "model", "quantization", name="pk_pins"),
    )
    op.create_table(
        "demand",
        sa.Column("model", sa.String(200), nullable=False),
        sa.Column("quantization", sa.String(32), nullable=False),
        sa.Column("requests", sa.Double(), nullable=False),
        sa.Column("updated_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("model", "quantization", name="pk_demand"),
    )
    op.create_table(
        "leadership",
        sa.Column("role", sa.String(32), nullable=False),
        sa.Column("holder", sa.String(64), nullable=False),
        sa.Column("term", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("role", name="pk_leadership"),
    )
    op.create_table(
        "aliases",
        sa.Column("name", sa.String(200), nullable=False),
        sa.Column("target", sa.String(240), nullable=False),
        sa.Column("prior", sa.String(240), nullable=True),
        sa.Column("changed_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_aliases"),
    )
