from meshnet_tracker.planning.snapshot import PlannerPolicy
from meshnet_tracker.planning_pass import plan_pass
from meshnet_tracker.store.store import Store
from tests.tracker.builders import NOW, preset
from tests.tracker.store.meshes import issue, join


async def test_a_pass_plans_on_what_the_database_holds_and_names_its_epoch(store: Store) -> None:
    await store.add_preset(preset(), NOW)
    await join(store, "w1")
    planned = await plan_pass(store, PlannerPolicy(), NOW)
    (order,) = planned.directives
    assert (order.worker_id, len(order.shard_range), planned.epoch) == ("w1", 6, 0)
    await issue(store, order)
    again = await plan_pass(store, PlannerPolicy(), NOW)
    assert (again.directives, again.epoch) == ((), 1)
