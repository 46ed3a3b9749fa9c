"""What the Tracker remembers, as values: the rows of its tables without the SQL."""

from dataclasses import dataclass

from meshnet_common.ids import WorkerId
from meshnet_common.presets import ModelPreset, Variant
from meshnet_common.protocol.messages import (
    Capabilities,
    Directive,
    DirectiveReport,
    DirectiveState,
    Heartbeat,
    RegisterWorker,
    ShardReport,
)
from meshnet_tracker.planning.snapshot import MeshSnapshot


@dataclass(frozen=True, slots=True)
class PresetRecord:
    """A Model Preset with its served Variants, and the figures of those that are not served."""

    preset: ModelPreset
    unserved: tuple[Variant, ...] = ()
    added_at: float = 0.0
    is_canary: bool = False
    """It is placed, but not listed, and takes no request but under `/canary`."""


@dataclass(frozen=True, slots=True)
class AliasRecord:
    """A public name and what answers under it, now and before the last cut-over."""

    name: str
    target: str
    prior: str | None
    changed_at: float


@dataclass(frozen=True, slots=True)
class DirectiveRecord:
    """A Rebalance Directive with its whole story; times are seconds since the epoch."""

    worker_id: WorkerId
    directive: Directive
    state: DirectiveState
    detail: str
    why: str
    issued_at: float
    updated_at: float
    bytes_done: int
    bytes_total: int


@dataclass(frozen=True, slots=True)
class DirectiveTally:
    """How many Rebalance Directives of one sort are not finished, and since when the oldest."""

    kind: str
    reason: str
    state: str
    count: int
    oldest_at: float


@dataclass(frozen=True, slots=True)
class LoadedSnapshot:
    """A Mesh Snapshot and how many plans were issued before it, which fences what is issued."""

    snapshot: MeshSnapshot
    issued_plans: int


@dataclass(frozen=True, slots=True)
class OpenDirective:
    """A Rebalance Directive that its Worker has not finished, and how far it has come."""

    directive: Directive
    state: DirectiveState
    bytes_done: int
    bytes_total: int


@dataclass(frozen=True, slots=True)
class WorkerRecord:
    """One Worker with all that is known of it; times are seconds since the epoch."""

    worker_id: WorkerId
    url: str
    version: str
    fingerprint: str
    capabilities: Capabilities
    registered_at: float
    seen_at: float
    is_heard: bool
    is_lost: bool
    is_leaving: bool
    sessions: int
    kv_bytes_free: int
    speeds_of: str
    """Whose Layers the capabilities' decode and prefill speeds are of."""
    failures: int
    cooling_until: float
    shards: tuple[ShardReport, ...]
    directives: tuple[OpenDirective, ...]


@dataclass(frozen=True, slots=True)
class Joining:
    """A registration, and the hash of the token that its Worker gets."""

    registration: RegisterWorker
    token_sha256: str


@dataclass(frozen=True, slots=True)
class Beat:
    """A heartbeat, and the hash of the token that came with it."""

    worker_id: WorkerId
    token_sha256: str
    heartbeat: Heartbeat


@dataclass(frozen=True, slots=True)
class Poll:
    """A Worker that asks for the Rebalance Directives above the epoch that it has seen."""

    worker_id: WorkerId
    token_sha256: str
    epoch: int


@dataclass(frozen=True, slots=True)
class PollFound:
    """What there is for a Worker that asks for directives."""

    is_known: bool
    """It is registered with its token."""
    is_ahead: bool
    """It has seen an epoch above ours, which has to be continued."""
    directives: tuple[Directive, ...]


@dataclass(frozen=True, slots=True)
class Reporting:
    """A Worker that says how far one of its Rebalance Directives is."""

    worker_id: WorkerId
    token_sha256: str
    directive_id: str
    report: DirectiveReport


@dataclass(frozen=True, slots=True)
class Reported:
    """What came of such a word."""

    is_known: bool
    """Its Worker is registered with that token."""
    state: DirectiveState | None
    """The state of the directive now; None if the Worker has none of that name."""


@dataclass(frozen=True, slots=True)
class WorkerPlace:
    """Where a Worker can be reached, by one registration of it."""

    worker_id: WorkerId
    url: str
    registered_at: float


@dataclass(frozen=True, slots=True)
class LateWorkers:
    """Workers that were not heard of for too long, and how many there are that are not lost."""

    places: tuple[WorkerPlace, ...]
    live: int


@dataclass(frozen=True, slots=True)
class Renewals:
    """What is known of a Session's renewals; nothing, as long as there were none."""

    head_since: int = 0
    """The incarnation in which its Head Worker became it; 0 is from the start."""
    renewed_at: float = 0.0
    """When it was last renewed."""


@dataclass(frozen=True, slots=True)
class SigningKey:
    """An ed25519 key of this Mesh; `secret` is its 32 raw private bytes."""

    key_id: str
    secret: bytes
    created_at: float

    def __repr__(self) -> str:
        """Keep the secret out of logs and tracebacks."""
        return f"SigningKey({self.key_id!r})"


@dataclass(frozen=True, slots=True)
class Term:
    """A Tracker's right to plan: who holds it, which one it is, and until when it lasts."""

    holder: str
    number: int
    expires_at: float
    """By the database's clock; the holder renews it long before."""
    failing_since: float = 0.0
    """When the first of its planning passes failed, of those that failed last; 0: they succeed."""
