"""Messages between Tracker and Worker over HTTP, as JSON.

One struct per body. Names of fields are binding for every release of either side; a field is
only ever added, with a default.
"""

from enum import StrEnum

import msgspec

from meshnet_common.presets import ModelPreset
from meshnet_common.shard_range import ShardRange


class DirectiveKind(StrEnum):
    """What a Rebalance Directive orders; a Worker refuses and reports any other word."""

    LOAD_SHARD = "LOAD_SHARD"
    DROP_SHARD = "DROP_SHARD"


class DirectiveReason(StrEnum):
    """Why the planner issued a Rebalance Directive."""

    GAP = "gap"
    HOTSPOT = "hotspot"
    REDUNDANCY = "redundancy"
    SPEED = "speed"
    OPERATOR = "operator"


class DirectiveState(StrEnum):
    """Where a Rebalance Directive stands; the last three are final."""

    ISSUED = "issued"
    ACCEPTED = "accepted"
    LOADING = "loading"
    READY = "ready"
    FAILED = "failed"
    EXPIRED = "expired"


class ShardState(StrEnum):
    """Where a Shard stands on its Worker; only a ready one may be on a Route."""

    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """What a Worker offers; `vram_bytes` is its whole Budget, weights and KV together."""

    vram_bytes: int
    quantizations: tuple[str, ...]
    benchmark_tokens_per_sec: float
    benchmark_model: str
    device: str
    starts_at_zero: bool = False
    """Set by `--tracker-mode`: this Worker's range must start at layer 0."""
    decode_tokens_per_sec_per_layer: float = 0.0
    """Of `benchmark_model`'s Layers, as the next one; 0 is not measured, here and below."""
    prefill_tokens_per_sec_per_layer: float = 0.0
    memory_bytes_per_sec: float = 0.0
    """Copying within the device's memory, bytes read and written both counted."""
    link_bytes_per_sec: float = 0.0
    """Sending to the Tracker."""
    region: str = ""
    """Where the Volunteer says the Worker is; a hint, measured round trips decide."""


class RegisterWorker(msgspec.Struct, frozen=True, kw_only=True):
    """Body of `POST /v1/workers`; `worker_id` is stable across restarts of one Worker."""

    worker_id: str
    url: str
    version: str
    capabilities: Capabilities
    fingerprint: str = ""


class Registered(msgspec.Struct, frozen=True, kw_only=True):
    """Answer to a registration; `token` is the bearer token of every later call."""

    worker_id: str
    token: str
    heartbeat_seconds: float
    lost_after_seconds: float
    directive_wait_seconds: float


class ShardReport(msgspec.Struct, frozen=True, kw_only=True):
    """One Shard as its Worker sees it; bytes say how far a load has come."""

    model: str
    quantization: str
    start_layer: int
    end_layer: int
    state: ShardState
    is_tail: bool
    bytes_done: int = 0
    bytes_total: int = 0
    digest: str = ""
    """The Variant's, by which other weights of this name are told; empty: of an older release."""

    @property
    def shard_range(self) -> ShardRange:
        return ShardRange(self.start_layer, self.end_layer)


class Heartbeat(msgspec.Struct, frozen=True, kw_only=True):
    """Body of `POST /v1/workers/{id}/heartbeat`: all that a Worker serves, and its load."""

    shards: tuple[ShardReport, ...]
    sessions: int
    kv_bytes_free: int
    directive_epoch: int
    """Highest directive epoch that this Worker has seen; Trackers continue above it."""
    decode_tokens_per_sec_per_layer: float = 0.0
    """Measured on loaded Layers; so is the next one."""
    prefill_tokens_per_sec_per_layer: float = 0.0
    speeds_of: str = ""
    """The model whose Layers these are; empty before any was loaded."""
    link_bytes_per_sec: float = 0.0
    """Sending to the Tracker."""
    leaving: bool = False
    """It finishes what it runs and then leaves: no Route and no directive for it any more."""
    queued: int = 0
    """Requests and Prefill Chunks that wait here for their turn."""
    download_bytes_per_sec: float = 0.0
    """Fetching weights, as of the last load; 0 is not measured."""
    round_trips: tuple["RoundTrip", ...] = ()
    """To Peers that it holds a link to or was asked to measure."""


class RoundTrip(msgspec.Struct, frozen=True, kw_only=True):
    """The shortest of the last few round trips to a Peer."""

    worker_id: str
    seconds: float


class PeerAddress(msgspec.Struct, frozen=True, kw_only=True):
    """A Peer whose round trip is to be measured."""

    worker_id: str
    url: str


class HeartbeatReply(msgspec.Struct, frozen=True, kw_only=True):
    """Answer to a heartbeat; `now` is the Tracker's clock, seconds since the epoch."""

    now: float
    measure: tuple[PeerAddress, ...] = ()
    """Peers to whom the round trip is wanted with a later heartbeat."""


class Directive(msgspec.Struct, frozen=True, kw_only=True):
    """A Rebalance Directive on the wire; layers are half open, `deadline` is Tracker time."""

    id: str
    epoch: int
    kind: str
    """A DirectiveKind, kept a string here: an unknown kind is refused and reported, not junk."""
    model: str
    start_layer: int
    end_layer: int
    quantization: str
    reason: str
    deadline: float


class DirectiveList(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of `GET /v1/workers/{id}/directives?after=EPOCH&wait=SECONDS`, by epoch."""

    directives: tuple[Directive, ...]


class DirectiveReport(msgspec.Struct, frozen=True, kw_only=True):
    """Body of `POST /v1/workers/{id}/directives/{directive_id}`."""

    state: DirectiveState
    reason: str = ""
    bytes_done: int = 0
    bytes_total: int = 0


class PresetAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of `GET /v1/presets/{preset}`: what a Worker needs to load a Shard."""

    preset: ModelPreset


class RouteAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of `GET /v1/route/{preset}`: the signed Route Ticket and its claims in the clear."""

    ticket: str
    hops: tuple["RouteHop", ...]


class RenewRoute(msgspec.Struct, frozen=True, kw_only=True):
    """Body of `POST /v1/route/renew`: a Session that is to be opened again under a new ticket.

    Answered by a RouteAnswer: the same Session, one incarnation later, on the best Route of this
    moment from the same Head Worker, around the Workers to `avoid` if there is a way.
    """

    ticket: str
    avoid: tuple[str, ...] = ()
    """Workers that have merely refused."""
    faults: tuple["HopFault", ...] = ()


class HopFault(msgspec.Struct, frozen=True, kw_only=True):
    """A Worker of a Route that failed its Session, and how: the code of an error frame."""

    worker_id: str
    code: str


class RouteHop(msgspec.Struct, frozen=True, kw_only=True):
    """One Hop of a Route: which Worker, and the Layers that it runs there."""

    worker_id: str
    url: str
    start: int
    end: int
    fingerprint: str = ""

    @property
    def shard_range(self) -> ShardRange:
        return ShardRange(self.start, self.end)


class CoverageRow(msgspec.Struct, frozen=True, kw_only=True):
    """A run of Layers with equal replicas; `worker_count` 0 is a Coverage Gap."""

    start_layer: int
    end_layer: int
    worker_count: int
