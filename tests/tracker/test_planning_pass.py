from meshnet_tracker.planning.snapshot import MeshSnapshot, PlannerPolicy
from meshnet_tracker.planning_pass import FRESH_SECONDS, PlanningPasses
from meshnet_tracker.store.store import Store
from tests.tracker.builders import NOW, preset, shard
from tests.tracker.store.meshes import issue, join, lose


async def test_a_pass_plans_on_what_the_database_holds_and_counts_plans(
    store: Store,
) -> None:
    await store.add_preset(preset(), NOW)
    await join(store, "w1")
    passes = PlanningPasses(store)
    planned = await passes.plan(PlannerPolicy(), NOW)
    (order,) = planned.directives
    assert (order.worker_id, len(order.shard_range), planned.issued_plans) == ("w1", 6, 0)
    await issue(store, order)
    again = await passes.plan(PlannerPolicy(), NOW)
    assert (again.directives, again.issued_plans) == ((), 1)


async def test_every_pass_sees_the_mesh_as_a_first_one_would(store: Store) -> None:
    seen: list[MeshSnapshot] = []

    def look(snapshot: MeshSnapshot, *_: object) -> tuple[()]:
        seen.append(snapshot)
        return ()

    passes = PlanningPasses(store, look)

    async def check(seconds: float = 0.0) -> None:
        await passes.plan(PlannerPolicy(), NOW + seconds)
        assert seen[-1] == (await store.load_snapshot()).snapshot

    await check()
    await store.add_preset(preset(), NOW)
    await join(store, "w1", shard(0, 3))
    await check()
    await join(store, "w2", shard(3, 6), now=NOW + 20)
    await check()
    await lose(store, NOW + 10, NOW + 30)
    await check()
    await check(FRESH_SECONDS)
