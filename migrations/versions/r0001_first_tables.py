"""The first tables: presets, variants, workers, shards, directives, keys and counters."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    _presets()
    _workers()
    _directives()
    op.create_table(
        "signing_keys",
        sa.Column("key_id", sa.String(64), nullable=False),
        sa.Column("private_key", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("key_id", name="pk_signing_keys"),
    )
    counters = op.create_table(
        "counters",
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("value", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_counters"),
    )
    names = ("directive_epoch", "admission_seq", "preset_version")
    op.bulk_insert(counters, [{"name": name, "value": 0} for name in names])


def downgrade() -> None:
    for table in ("counters", "signing_keys", "directives", "worker_shards", "workers"):
        op.drop_table(table)
    op.drop_table("variants")
    op.drop_table("presets")


def _presets() -> None:
    op.create_table(
        "presets",
        sa.Column("name", sa.String(200), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("architecture", sa.String(200), nullable=False),
        sa.Column("hidden_size", sa.Integer(), nullable=False),
        sa.Column("vocabulary_size", sa.Integer(), nullable=False),
        sa.Column("context_tokens", sa.Integer(), nullable=False),
        sa.Column("default_quantization", sa.String(32), nullable=False),
        sa.Column("added_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_presets"),
    )
    op.create_table(
        "variants",
        sa.Column("preset", sa.String(200), nullable=False),
        sa.Column("quantization", sa.String(32), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("served", sa.Boolean(), nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("layer_bytes", sa.JSON(), nullable=False),
        sa.Column("embedding_bytes", sa.BigInteger(), nullable=False),
        sa.Column("head_bytes", sa.BigInteger(), nullable=False),
        sa.Column("kv_bytes_per_token_per_layer", sa.BigInteger(), nullable=False),
        sa.Column("wire_dtype", sa.String(32), nullable=False),
        sa.ForeignKeyConstraint(
            ["preset"], ["presets.name"], name="fk_variants_preset", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("preset", "quantization", name="pk_variants"),
    )


def _workers() -> None:
    op.create_table(
        "workers",
        sa.Column("id", sa.String(128), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("version", sa.String(64), nullable=False),
        sa.Column("fingerprint", sa.String(128), nullable=False),
        sa.Column("token_sha256", sa.String(64), nullable=False),
        sa.Column("vram_bytes", sa.BigInteger(), nullable=False),
        sa.Column("quantizations", sa.JSON(), nullable=False),
        sa.Column("benchmark_tokens_per_sec", sa.Double(), nullable=False),
        sa.Column("benchmark_model", sa.String(200), nullable=False),
        sa.Column("device", sa.String(200), nullable=False),
        sa.Column("starts_at_zero", sa.Boolean(), nullable=False),
        sa.Column("registered_at", sa.Double(), nullable=False),
        sa.Column("seen_at", sa.Double(), nullable=False),
        sa.Column("heard", sa.Boolean(), nullable=False),
        sa.Column("lost_at", sa.Double(), nullable=True),
        sa.Column("sessions", sa.Integer(), nullable=False),
        sa.Column("kv_bytes_free", sa.BigInteger(), nullable=False),
        sa.Column("directive_epoch", sa.BigInteger(), nullable=False),
        sa.Column("failures", sa.Integer(), nullable=False),
        sa.Column("cooling_until", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_workers"),
    )
    op.create_table(
        "worker_shards",
        sa.Column("worker_id", sa.String(128), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("model", sa.String(200), nullable=False),
        sa.Column("quantization", sa.String(32), nullable=False),
        sa.Column("start_layer", sa.Integer(), nullable=False),
        sa.Column("end_layer", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("is_tail", sa.Boolean(), nullable=False),
        sa.Column("bytes_done", sa.BigInteger(), nullable=False),
        sa.Column("bytes_total", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["worker_id"], ["workers.id"], name="fk_worker_shards_worker_id", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("worker_id", "position", name="pk_worker_shards"),
    )
    op.create_index(
        "ix_worker_shards_model_quantization_state",
        "worker_shards",
        ["model", "quantization", "state"],
    )


def _directives() -> None:
    op.create_table(
        "directives",
        sa.Column("id", sa.String(32), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("worker_id", sa.String(128), nullable=False),
        sa.Column("kind", sa.String(32), nullable=False),
        sa.Column("model", sa.String(200), nullable=False),
        sa.Column("quantization", sa.String(32), nullable=False),
        sa.Column("start_layer", sa.Integer(), nullable=False),
        sa.Column("end_layer", sa.Integer(), nullable=False),
        sa.Column("reason", sa.String(32), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.Column("issued_at", sa.Double(), nullable=False),
        sa.Column("deadline", sa.Double(), nullable=False),
        sa.Column("updated_at", sa.Double(), nullable=False),
        sa.Column("bytes_done", sa.BigInteger(), nullable=False),
        sa.Column("bytes_total", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["worker_id"], ["workers.id"], name="fk_directives_worker_id", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_directives"),
        sa.UniqueConstraint("epoch", name="uq_directives_epoch"),
    )
    op.create_index("ix_directives_worker_id_state", "directives", ["worker_id", "state"])
    op.create_index("ix_directives_state", "directives", ["state"])
