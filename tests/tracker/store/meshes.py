"""Steps that tests of the store share: joining, serving, ordering."""

from collections.abc import Sequence

from meshnet_common.ids import WorkerId
from meshnet_common.protocol.messages import (
    Directive,
    DirectiveReport,
    DirectiveState,
    Heartbeat,
    RegisterWorker,
    ShardReport,
)
from meshnet_tracker.planning.snapshot import RebalanceDirective
from meshnet_tracker.records import Beat, Joining, Reporting, Term
from meshnet_tracker.store import directives
from meshnet_tracker.store.heartbeats import Heard
from meshnet_tracker.store.snapshots import MeshNumbers
from meshnet_tracker.store.store import Store
from tests.tracker.builders import NOW, TOKEN_SHA256, heartbeat, registration


async def register(
    store: Store, offered: RegisterWorker, now: float = NOW, token_sha256: str = TOKEN_SHA256
) -> None:
    """Take in a Worker, if nothing else is said with the token of all tests."""
    await store.callers.register([Joining(offered, token_sha256)], now)


async def join(store: Store, worker_id: str, *shards: ShardReport, now: float = NOW) -> WorkerId:
    """Register a Worker and let it report its Shards."""
    await register(store, registration(worker_id), now)
    await beat(store, worker_id, *shards, now=now)
    return WorkerId(worker_id)


async def beat(
    store: Store, worker_id: str, *shards: ShardReport, now: float = NOW, leaving: bool = False
) -> bool:
    return await hear(store, worker_id, heartbeat(*shards, leaving=leaving), now)


async def hear(store: Store, worker_id: str, body: Heartbeat, now: float = NOW) -> bool:
    """Take one heartbeat; answers whether it was news."""
    beat = Beat(WorkerId(worker_id), TOKEN_SHA256, body)
    (heard,) = await store.heartbeats.record([beat], now + 600, now)
    assert heard is not Heard.REFUSED
    return heard is Heard.NEWS


async def leave(store: Store, worker_id: str, now: float = NOW) -> None:
    """Say goodbye."""
    assert await store.callers.leave([(WorkerId(worker_id), TOKEN_SHA256)], now) == (True,)


async def tell(
    store: Store, worker_id: str, directive_id: str, report: DirectiveReport, now: float = NOW
) -> DirectiveState | None:
    """Report on a directive; answers its state, None if the Worker has no such one."""
    reporting = Reporting(WorkerId(worker_id), TOKEN_SHA256, directive_id, report)
    (reported,) = await store.callers.report([reporting], now + 600, now)
    assert reported.is_known
    return reported.state


async def issue(
    store: Store, *planned: RebalanceDirective, now: float = NOW, deadline_seconds: float = 600.0
) -> tuple[WorkerId, ...]:
    plans = (await store.load_snapshot()).issued_plans
    term = await turn(store)
    issued = await store.issue_directives(planned, plans, deadline_seconds, now, term)
    return tuple(directive.worker_id for directive in issued)


async def preset_version(store: Store) -> int:
    """Return a number that changes with what Operators change."""
    return (await store.mesh.changes(MeshNumbers())).numbers.preset_version


async def turn(store: Store, holder: str = "tests") -> Term:
    """Take the turn to plan, or keep it."""
    term = await store.leadership.take(holder)
    assert term is not None
    return term


async def lose(store: Store, seen_before: float, now: float) -> tuple[WorkerId, ...]:
    """Mark everybody as lost who was not seen since then."""
    late = [place.worker_id for place in (await store.losses.late(seen_before)).places]
    return await store.losses.mark(late, seen_before, now, await turn(store))


async def open_for(store: Store, worker_id: str, epoch: int = 0) -> Sequence[Directive]:
    async with store._transactions.read() as connection:
        orders = await directives.open_of_worker(connection, WorkerId(worker_id), epoch)
    return [order.directive for order in orders]
