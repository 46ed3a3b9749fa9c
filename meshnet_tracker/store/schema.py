"""The tables, as SQLAlchemy Core sees them; Alembic's revisions are what makes them.

Types are the common ground of SQLite and PostgreSQL. Times are seconds since the epoch, sizes are
bytes, Layers are half open. A test holds this file and the revisions equal.
"""

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    false,
)

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)

presets = Table(
    "presets",
    metadata,
    Column("name", String(200), primary_key=True),
    Column("source", Text, nullable=False),
    Column("architecture", String(200), nullable=False),
    Column("hidden_size", Integer, nullable=False),
    Column("vocabulary_size", Integer, nullable=False),
    Column("context_tokens", Integer, nullable=False),
    Column("default_quantization", String(32), nullable=False),
    Column("added_at", Double, nullable=False),
    # Placed like any other, but not listed, and asked for under /canary only.
    Column("canary", Boolean, nullable=False, server_default=false()),
)

manifests = Table(
    "manifests",
    metadata,
    Column("preset", ForeignKey(presets.c.name, ondelete="CASCADE"), primary_key=True),
    # JSON of megabytes for a big model, which is read for Workers only.
    Column("content", Text, nullable=False),
)

variants = Table(
    "variants",
    metadata,
    Column("preset", ForeignKey(presets.c.name, ondelete="CASCADE"), primary_key=True),
    Column("quantization", String(32), primary_key=True),
    Column("position", Integer, nullable=False),
    # Figures of every quantization are kept; only served ones reach the planner.
    Column("served", Boolean, nullable=False),
    Column("digest", String(64), nullable=False),
    Column("layer_bytes", JSON, nullable=False),
    Column("embedding_bytes", BigInteger, nullable=False),
    Column("head_bytes", BigInteger, nullable=False),
    Column("kv_bytes_per_token_per_layer", BigInteger, nullable=False),
    Column("wire_dtype", String(32), nullable=False),
    Column("gguf", Text, nullable=False, server_default=""),
    Column("gguf_sha256", String(64), nullable=False, server_default=""),
)

workers = Table(
    "workers",
    metadata,
    Column("id", String(128), primary_key=True),
    Column("url", Text, nullable=False),
    Column("version", String(64), nullable=False),
    Column("fingerprint", String(128), nullable=False),
    Column("token_sha256", String(64), nullable=False),
    Column("vram_bytes", BigInteger, nullable=False),
    Column("quantizations", JSON, nullable=False),
    Column("benchmark_tokens_per_sec", Double, nullable=False),
    Column("benchmark_model", String(200), nullable=False),
    Column("device", String(200), nullable=False),
    # Measured apart from the benchmark that the planner uses; 0 is not measured.
    Column("decode_tokens_per_sec_per_layer", Double, nullable=False, server_default="0"),
    Column("prefill_tokens_per_sec_per_layer", Double, nullable=False, server_default="0"),
    Column("memory_bytes_per_sec", Double, nullable=False, server_default="0"),
    Column("link_bytes_per_sec", Double, nullable=False, server_default="0"),
    # Which model's Layers the first two were measured on.
    Column("speeds_of", String(200), nullable=False, server_default=""),
    Column("starts_at_zero", Boolean, nullable=False),
    Column("registered_at", Double, nullable=False),
    Column("seen_at", Double, nullable=False),
    # Until its first heartbeat nobody knows what a Worker holds.
    Column("heard", Boolean, nullable=False),
    # Set while the Worker is a Lost Worker; its next heartbeat clears it.
    Column("lost_at", Double, nullable=True),
    Column("sessions", Integer, nullable=False),
    Column("kv_bytes_free", BigInteger, nullable=False),
    Column("directive_epoch", BigInteger, nullable=False),
    Column("failures", Integer, nullable=False),
    Column("cooling_until", Double, nullable=False),
    # Finishes what it runs and then leaves.
    Column("leaving", Boolean, nullable=False, server_default=false()),
    Column("region", String(200), nullable=False, server_default=""),
    Column("queued", Integer, nullable=False, server_default="0"),
    Column("download_bytes_per_sec", Double, nullable=False, server_default="0"),
    # A list of [Worker's id, seconds].
    Column("round_trips", JSON, nullable=False, server_default="[]"),
    # Said goodbye. The row stays for a while, so that all Trackers see it go.
    Column("gone", Boolean, nullable=False, server_default=false()),
    # The mesh-wide number of the last change that Routes or the planner may care about.
    Column("changed", BigInteger, nullable=False, server_default="0"),
    # Its number once more, by what changed. In neither: a Tracker of an older release noted it.
    Column("changed_beside_load", BigInteger, nullable=False, server_default="0"),
    Column("changed_by_load", BigInteger, nullable=False, server_default="0"),
    Index(None, "changed"),
)

worker_shards = Table(
    "worker_shards",
    metadata,
    Column("worker_id", ForeignKey(workers.c.id, ondelete="CASCADE"), primary_key=True),
    Column("position", Integer, primary_key=True),
    Column("model", String(200), nullable=False),
    Column("quantization", String(32), nullable=False),
    Column("start_layer", Integer, nullable=False),
    Column("end_layer", Integer, nullable=False),
    Column("state", String(16), nullable=False),
    Column("is_tail", Boolean, nullable=False),
    Column("bytes_done", BigInteger, nullable=False),
    Column("bytes_total", BigInteger, nullable=False),
    # Of the Variant that its Worker holds; empty where it did not tell.
    Column("digest", String(64), nullable=False, server_default=""),
    Index(None, "model", "quantization", "state"),
)

directives = Table(
    "directives",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("epoch", BigInteger, nullable=False, unique=True),
    Column("worker_id", ForeignKey(workers.c.id, ondelete="CASCADE"), nullable=False),
    Column("kind", String(32), nullable=False),
    Column("model", String(200), nullable=False),
    Column("quantization", String(32), nullable=False),
    Column("start_layer", Integer, nullable=False),
    Column("end_layer", Integer, nullable=False),
    Column("reason", String(32), nullable=False),
    Column("state", String(16), nullable=False),
    # What the Worker, or the Tracker when it closed the row, said about the end of it.
    Column("detail", Text, nullable=False),
    # The planner's sentence about what it is for.
    Column("why", Text, nullable=False, server_default=""),
    Column("issued_at", Double, nullable=False),
    Column("deadline", Double, nullable=False),
    Column("updated_at", Double, nullable=False),
    Column("bytes_done", BigInteger, nullable=False),
    Column("bytes_total", BigInteger, nullable=False),
    Index(None, "worker_id", "state"),
    Index(None, "state"),
    Index(None, "updated_at"),
)

pins = Table(
    "pins",
    metadata,
    # No foreign key: a pin outlives the Worker's absence.
    Column("worker_id", String(128), primary_key=True),
    Column("model", String(200), primary_key=True),
    Column("quantization", String(32), primary_key=True),
    Column("start_layer", Integer, nullable=False),
    Column("end_layer", Integer, nullable=False),
    Column("added_at", Double, nullable=False),
)

drains = Table(
    "drains",
    metadata,
    # An Operator wants this Worker empty; like a pin, that outlives its absence.
    Column("worker_id", String(128), primary_key=True),
    Column("added_at", Double, nullable=False),
)

demand = Table(
    "demand",
    metadata,
    Column("model", String(200), primary_key=True),
    Column("quantization", String(32), primary_key=True),
    # A decaying count; with `updated_at` it gives requests per second.
    Column("requests", Double, nullable=False),
    Column("updated_at", Double, nullable=False),
)

leadership = Table(
    "leadership",
    metadata,
    Column("role", String(32), primary_key=True),
    Column("holder", String(64), nullable=False),
    # Grows by one whenever another Tracker takes over; fences what an old one still wants.
    Column("term", BigInteger, nullable=False),
    # By the database's clock.
    Column("expires_at", Double, nullable=False),
    # 0 while planning passes succeed.
    Column("failing_since", Double, nullable=False, server_default="0"),
)

aliases = Table(
    "aliases",
    metadata,
    # A public name, and the public name of the Variant that answers under it now.
    Column("name", String(200), primary_key=True),
    Column("target", String(240), nullable=False),
    # What it stood for before, for a rollback.
    Column("prior", String(240), nullable=True),
    Column("changed_at", Double, nullable=False),
)

api_keys = Table(
    "api_keys",
    metadata,
    Column("name", String(64), primary_key=True),
    Column("key_sha256", String(64), nullable=False, unique=True),
    # How the key begins, for people.
    Column("shown", String(16), nullable=False),
    # Public names; without any the key opens all.
    Column("models", JSON(none_as_null=True), nullable=True),
    Column("requests_per_minute", Integer, nullable=True),
    Column("created_at", Double, nullable=False),
    Column("expires_at", Double, nullable=True),
    Column("revoked_at", Double, nullable=True),
    # What its requests so far have taken up of its rate.
    Column("busy_until", Double, nullable=False),
    Column("tokens_per_minute", Integer, nullable=True),
    Column("tokens_busy_until", Double, nullable=False, server_default="0"),
)

signing_keys = Table(
    "signing_keys",
    metadata,
    Column("key_id", String(64), primary_key=True),
    Column("private_key", LargeBinary, nullable=False),
    Column("created_at", Double, nullable=False),
)

incarnations = Table(
    "incarnations",
    metadata,
    Column("session_id", String(64), primary_key=True),
    Column("incarnation", Integer, nullable=False),
    # The incarnation in which its Head Worker became it; 0 is from the start.
    Column("head_since", Integer, nullable=False),
    Column("renewed_at", Double, nullable=False),
    Index(None, "renewed_at"),
)

counters = Table(
    "counters",
    metadata,
    Column("name", String(64), primary_key=True),
    Column("value", BigInteger, nullable=False),
)
