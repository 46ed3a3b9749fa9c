"""What a Worker's Hops work with; made once by the daemon."""

from collections.abc import Callable
from dataclasses import dataclass

from meshnet_common.edge.clock import Clock
from meshnet_common.ids import WorkerId
from meshnet_common.protocol.bodies import Body
from meshnet_common.protocol.messages import RouteHop
from meshnet_worker.engine_port import Command
from meshnet_worker.kept import KeptActivations
from meshnet_worker.kv_budget import KvBudget
from meshnet_worker.sessions import HopSession, SessionTable
from meshnet_worker.shards import ShardTable


@dataclass(frozen=True, slots=True)
class HopRoom:
    """What a Hop works with: itself, its memory, its Shards, its engine and the way out."""

    worker_id: WorkerId
    shards: ShardTable
    kv: KvBudget
    sessions: SessionTable
    clock: Clock
    """The Tracker's, by which tickets expire."""
    steady: Clock
    """This Worker's own, that nobody sets: leases and the ages of steps go by it."""
    send: Callable[[Command, bytes], None]
    dispatch: Callable[[RouteHop, Body], None]
    on_freed: Callable[[HopSession], None]
    """Hears of a Session that was closed."""
    kept: KeptActivations
    slow_batch_seconds: Callable[[], float] = float
    """How long a Batch may take here before it is overdue; no time where nobody says."""
