"""Steps that tests of the store share: joining, serving, ordering."""

from collections.abc import Sequence

from meshnet_common.ids import WorkerId
from meshnet_common.protocol.messages import Directive, ShardReport
from meshnet_tracker.planning.snapshot import RebalanceDirective
from meshnet_tracker.store.store import Store
from tests.tracker.builders import NOW, TOKEN_SHA256, heartbeat, registration


async def join(store: Store, worker_id: str, *shards: ShardReport, now: float = NOW) -> WorkerId:
    """Register a Worker and let it report its Shards."""
    await store.register_worker(registration(worker_id), TOKEN_SHA256, now)
    await beat(store, worker_id, *shards, now=now)
    return WorkerId(worker_id)


async def beat(
    store: Store, worker_id: str, *shards: ShardReport, now: float = NOW, leaving: bool = False
) -> bool:
    body = heartbeat(*shards, leaving=leaving)
    return await store.record_heartbeat(WorkerId(worker_id), body, now + 600, now)


async def issue(
    store: Store, *planned: RebalanceDirective, now: float = NOW, deadline_seconds: float = 600.0
) -> tuple[WorkerId, ...]:
    epoch = (await store.load_snapshot()).epoch
    issued = await store.issue_directives(planned, epoch, deadline_seconds, now)
    return tuple(directive.worker_id for directive in issued)


async def open_for(store: Store, worker_id: str, epoch: int = 0) -> Sequence[Directive]:
    return await store.directives_after(WorkerId(worker_id), epoch)
