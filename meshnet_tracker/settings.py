"""What an Operator may tune about a Tracker; every figure has a default that works."""

from dataclasses import dataclass, field
from pathlib import Path

from meshnet_tracker.planning.snapshot import PlannerPolicy
from meshnet_tracker.tries import ProxyPolicy


@dataclass(frozen=True, slots=True)
class TrackerSettings:
    """Intervals and limits; a Worker is told its own when it registers."""

    heartbeat_seconds: float = 4.0
    lost_after_seconds: float = 12.0
    directive_wait_seconds: float = 25.0
    rebalance_seconds: float = 30.0
    renewal_seconds: float = 86400.0
    """How long after its last ticket was signed a Session may still be led to other Hops.

    A stream that met no fault was never renewed, and a long answer of a big model takes hours. On
    the other side, a ticket is a proof for so long, and a replaced key is kept for so long.
    """
    admin_token_sha256: str = ""
    """Of the token that opens `/admin`, which is not there without one."""
    metrics_token_sha256: str = ""
    """Of the token that opens `/metrics`, which everybody may read without one."""
    requires_api_key: bool = False
    """Whether nobody gets an answer without an API key."""
    policy: PlannerPolicy = field(default_factory=PlannerPolicy)
    proxy: ProxyPolicy = field(default_factory=ProxyPolicy)


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """Where a Tracker keeps its memory and where it listens; port 0 picks a free one."""

    database: str
    host: str
    port: int
    ready_file: Path | None
    settings: TrackerSettings
