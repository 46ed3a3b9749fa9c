"""One planning pass: read a Mesh Snapshot, let the pure planner decide."""

import time
from collections.abc import Callable, Sequence

from meshnet_tracker.planner_messages import Planned
from meshnet_tracker.planning.rebalance import plan_rebalance
from meshnet_tracker.planning.snapshot import MeshSnapshot, PlannerPolicy, RebalanceDirective
from meshnet_tracker.store.store import Store

Planner = Callable[[MeshSnapshot, PlannerPolicy, float], Sequence[RebalanceDirective]]


async def plan_pass(
    store: Store, policy: PlannerPolicy, now: float, plan: Planner = plan_rebalance
) -> Planned:
    """Plan on the Mesh as it is now; raises DatabaseUnavailableError.

    It occupies its event loop for as long as it plans.
    """
    loaded = await store.load_snapshot()
    began = time.process_time()
    directives = tuple(plan(loaded.snapshot, policy, now))
    return Planned(directives, loaded.epoch, time.process_time() - began)
