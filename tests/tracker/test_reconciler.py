import asyncio
import sqlite3
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from meshnet_common.ids import PresetName
from meshnet_common.protocol.messages import DirectiveState
from meshnet_tracker import reconciler
from meshnet_tracker.planner_messages import Planned
from meshnet_tracker.planning.rebalance import plan_rebalance
from meshnet_tracker.planning.snapshot import MeshSnapshot, PlannerPolicy, RebalanceDirective
from meshnet_tracker.planning_pass import Planner, PlanningPasses
from meshnet_tracker.reconciler import Reconciler
from meshnet_tracker.store.errors import StaleTermError
from tests.tracker.builders import DIGEST, NOW, preset, registration, shard
from tests.tracker.running import RunningTracker


@asynccontextmanager
async def running(tracker: RunningTracker, plan: Planner = plan_rebalance) -> AsyncIterator[None]:
    async with asyncio.timeout(20), asyncio.TaskGroup() as tasks:
        loop = tasks.create_task(tracker.reconciler(plan).run())
        yield
        loop.cancel()


async def test_a_joining_worker_gets_its_directive_without_waiting_for_the_next_pass(
    tracker: RunningTracker,
) -> None:
    async with running(tracker):
        worker = await tracker.join()
        (directive,) = await worker.directives(wait=10)
    assert (directive.start_layer, directive.end_layer) == (0, 6)


async def test_a_gap_is_given_to_whoever_joins_with_room(tracker: RunningTracker) -> None:
    first = await tracker.join(registration("w1", vram_bytes=4500))
    await first.beat(shard(0, 3))
    async with running(tracker):
        second = await tracker.join(registration("w2", vram_bytes=4700))
        (directive,) = await second.directives(wait=10)
    assert (directive.start_layer, directive.end_layer) == (3, 6)
    assert await first.directives() == ()


async def test_planning_again_on_the_same_mesh_issues_nothing(tracker: RunningTracker) -> None:
    worker = await tracker.join()
    loop = tracker.reconciler()
    await loop.reconcile_once()
    await loop.reconcile_once()
    assert len(await worker.directives()) == 1


async def test_shards_of_a_removed_preset_are_dropped(tracker: RunningTracker) -> None:
    worker = await tracker.serve("w1", "http://127.0.0.1:1", shard(0, 6))
    await tracker.store.remove_preset(PresetName("tiny"))
    await tracker.reconciler().reconcile_once()
    (directive,) = await worker.directives()
    assert (directive.kind, directive.reason) == ("DROP_SHARD", "operator")


async def test_shards_of_other_weights_are_no_way_to_lead_over_and_make_room_for_the_right_ones(
    tracker: RunningTracker,
) -> None:
    worker = await tracker.serve("w1", "http://127.0.0.1:1", shard(0, 6, digest="before"))
    assert (await tracker.get("/v1/route/tiny")).status == 503
    await tracker.reconciler().reconcile_once()
    (dropping,) = await worker.directives()
    assert (dropping.kind, dropping.start_layer, dropping.end_layer) == ("DROP_SHARD", 0, 6)
    await worker.report(dropping, DirectiveState.READY)
    await worker.beat()
    await tracker.reconciler().reconcile_once()
    (loading,) = await worker.directives(dropping.epoch)
    assert (loading.kind, loading.start_layer, loading.end_layer) == ("LOAD_SHARD", 0, 6)
    await worker.beat(shard(0, 6, digest=DIGEST))
    assert (await tracker.get("/v1/route/tiny")).status == 200


async def test_a_preset_that_is_replaced_is_loaded_again_wherever_it_was(
    tracker: RunningTracker,
) -> None:
    worker = await tracker.serve("w1", "http://127.0.0.1:1", shard(0, 6, digest=DIGEST))
    loop = tracker.reconciler()
    await loop.reconcile_once()
    assert await worker.directives() == ()
    await tracker.store.remove_preset(PresetName("tiny"))
    await tracker.store.add_preset(preset(layers=4), NOW)
    await loop.reconcile_once()
    (directive,) = await worker.directives()
    assert (directive.kind, directive.end_layer) == ("DROP_SHARD", 6)


async def test_a_worker_that_claims_more_layers_than_there_are_stops_no_planning(
    tracker: RunningTracker,
) -> None:
    await tracker.serve("w1", "http://127.0.0.1:1", shard(0, 100_000))
    assert (await tracker.get("/v1/route/tiny")).status == 503
    other = await tracker.join(registration("w2"))
    await tracker.reconciler().reconcile_once()
    (directive,) = await other.directives()
    assert (directive.kind, directive.end_layer) == ("LOAD_SHARD", 6)


async def test_many_changes_are_one_pass(tracker: RunningTracker) -> None:
    passes: list[MeshSnapshot] = []

    def count(snapshot: MeshSnapshot, *_: object) -> tuple[()]:
        passes.append(snapshot)
        return ()

    now = asyncio.get_running_loop().time
    began = now()
    async with running(tracker, count):
        for number in range(8):
            await tracker.join(registration(f"w{number}"))
    assert 1 <= len(passes) <= 1 + (now() - began) / reconciler.PASS_PAUSE_SECONDS


async def test_a_fault_of_the_planner_does_not_end_the_loop(
    tracker: RunningTracker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reconciler, "PASS_PAUSE_SECONDS", 0.01)
    faults = [ZeroDivisionError("planner")]

    def fail_once(
        snapshot: MeshSnapshot, policy: PlannerPolicy, now: float
    ) -> Sequence[RebalanceDirective]:
        if faults:
            raise faults.pop()
        return plan_rebalance(snapshot, policy, now)

    async with running(tracker, fail_once):
        worker = await tracker.join()
        assert len(await worker.directives(wait=10)) == 1


async def test_since_when_passes_fail_is_told_to_the_mesh(tracker: RunningTracker) -> None:
    def fail(*_: object) -> Sequence[RebalanceDirective]:
        raise ZeroDivisionError

    async def failing_since() -> float:
        await tracker.services.turn.renew()
        term = await tracker.store.leadership.current()
        assert term is not None
        return term.failing_since

    for _ in range(2):
        await tracker.reconciler(fail)._safe_pass()
        assert await failing_since() == NOW
        tracker.clock.advance(1)
    await tracker.reconciler()._safe_pass()
    assert await failing_since() == 0.0


async def test_a_database_that_fails_for_a_while_does_not_end_the_loop(
    tracker: RunningTracker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reconciler, "PASS_PAUSE_SECONDS", 0.01)
    worker = await tracker.join()
    raw = sqlite3.connect(tmp_path / "tracker.sqlite3", isolation_level=None)
    raw.execute("ALTER TABLE presets RENAME TO hidden")
    async with running(tracker):
        tracker.services.rebalance.ring()
        await asyncio.sleep(0)
        raw.execute("ALTER TABLE hidden RENAME TO presets")
        raw.close()
        tracker.services.rebalance.ring()
        assert len(await worker.directives(wait=10)) == 1


async def test_an_added_preset_is_planned(empty_tracker: RunningTracker) -> None:
    worker = await empty_tracker.join()
    loop = empty_tracker.reconciler()
    await loop.reconcile_once()
    assert await worker.directives() == ()
    await empty_tracker.store.add_preset(preset(), NOW)
    await loop.reconcile_once()
    assert len(await worker.directives()) == 1


async def test_only_the_tracker_whose_turn_it_is_plans(tracker: RunningTracker) -> None:
    worker = await tracker.join()
    await tracker.services.turn.hand_over()
    await tracker.reconciler().reconcile_once()
    assert await worker.directives() == ()
    await tracker.services.turn.renew()
    await tracker.reconciler().reconcile_once()
    assert len(await worker.directives()) == 1


async def test_a_tracker_that_was_overtaken_while_it_planned_issues_nothing(
    tracker: RunningTracker,
) -> None:
    worker = await tracker.join()
    term = tracker.services.turn.term
    assert term is not None

    async def plan_slowly(policy: PlannerPolicy, now: float) -> Planned:
        planned = await PlanningPasses(tracker.store).plan(policy, now)
        await tracker.store.leadership.hand_over(term)
        assert await tracker.store.leadership.take("another") is not None
        return planned

    with pytest.raises(StaleTermError):
        await Reconciler(tracker.services, plan_slowly).reconcile_once()
    assert await worker.directives() == ()


async def test_nothing_is_planned_while_planning_is_frozen(tracker: RunningTracker) -> None:
    worker = await tracker.join()
    tracker.services.frozen.set()
    await tracker.reconciler().reconcile_once()
    assert await worker.directives() == ()
