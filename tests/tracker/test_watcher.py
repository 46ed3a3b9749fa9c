import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from aiohttp import web

from meshnet_common.protocol.messages import DirectiveState
from meshnet_common.protocol.tickets import ticket_key_id
from meshnet_tracker.planning.snapshot import RebalanceDirective
from meshnet_tracker.signing import fresh_key
from meshnet_tracker.store.errors import StaleTermError
from meshnet_tracker.watcher import Watcher
from tests.common.builders import ticket
from tests.tracker.builders import NOW, load, shard
from tests.tracker.running import JoinedWorker, RunningTracker, until
from tests.tracker.served import served

WHOLE = [{"start_layer": 0, "end_layer": 6, "worker_count": 1}]
GAP = [{"start_layer": 0, "end_layer": 6, "worker_count": 0}]


async def look_for(tracker: RunningTracker, watcher: Watcher, seconds: int) -> None:
    """Let so many seconds go by, with a look in each."""
    for _ in range(seconds):
        tracker.clock.advance(1)
        await watcher.look()


async def serving(tracker: RunningTracker) -> JoinedWorker:
    return await tracker.serve("w1", "http://127.0.0.1:1", shard(0, 6))


async def coverage(tracker: RunningTracker) -> object:
    return (await tracker.get("/v1/coverage/tiny")).json


async def test_a_silent_workers_gap_shows_within_fifteen_seconds(tracker: RunningTracker) -> None:
    watcher = Watcher(tracker.services)
    await look_for(tracker, watcher, 30)
    await serving(tracker)
    await look_for(tracker, watcher, 12)
    assert await coverage(tracker) == WHOLE
    await tracker.services.rebalance.wait(0)
    await look_for(tracker, watcher, 2)
    assert await coverage(tracker) == GAP
    assert tracker.services.rebalance.is_rung


async def test_a_worker_that_sends_heartbeats_is_never_lost(tracker: RunningTracker) -> None:
    watcher = Watcher(tracker.services)
    worker = await serving(tracker)
    for _ in range(10):
        await look_for(tracker, watcher, 4)
        await worker.beat(shard(0, 6))
    assert await coverage(tracker) == WHOLE


async def test_time_in_which_the_tracker_was_down_does_not_count(tracker: RunningTracker) -> None:
    await serving(tracker)
    tracker.clock.advance(3600)
    watcher = Watcher(tracker.services)
    await look_for(tracker, watcher, 23)
    assert await coverage(tracker) == WHOLE
    await look_for(tracker, watcher, 2)
    assert await coverage(tracker) == GAP


async def test_a_machine_that_was_suspended_starts_counting_afresh(
    tracker: RunningTracker,
) -> None:
    watcher = Watcher(tracker.services)
    await look_for(tracker, watcher, 20)
    await serving(tracker)
    tracker.clock.advance(3600)
    await watcher.look()
    await look_for(tracker, watcher, 23)
    assert await coverage(tracker) == WHOLE
    await look_for(tracker, watcher, 2)
    assert await coverage(tracker) == GAP


async def test_a_lost_worker_that_comes_back_serves_again(tracker: RunningTracker) -> None:
    watcher = Watcher(tracker.services)
    worker = await serving(tracker)
    await look_for(tracker, watcher, 26)
    assert await coverage(tracker) == GAP
    assert (await worker.beat(shard(0, 6))).status == 200
    assert await coverage(tracker) == WHOLE


async def test_an_expired_directive_asks_for_a_new_plan(tracker: RunningTracker) -> None:
    await serving(tracker)
    await issue_of(tracker, load("w1", 0, 6), load("w1", 6, 8), deadline_seconds=5)
    watcher = Watcher(tracker.services)
    await tracker.services.rebalance.wait(0)
    await look_for(tracker, watcher, 6)
    (worker,) = await tracker.store.workers()
    assert (worker.directives, worker.failures) == ((), 1)
    assert tracker.services.rebalance.is_rung


async def test_only_the_tracker_whose_turn_it_is_marks_losses_and_expires(
    tracker: RunningTracker,
) -> None:
    await serving(tracker)
    await issue_of(tracker, load("w1", 0, 6), load("w1", 6, 8), deadline_seconds=5)
    watcher = Watcher(tracker.services)
    await tracker.services.turn.hand_over()
    await look_for(tracker, watcher, 60)
    assert await coverage(tracker) == WHOLE
    (worker,) = await tracker.store.workers()
    assert len(worker.directives) == 1
    await tracker.services.turn.renew()
    await look_for(tracker, watcher, 23)
    assert await coverage(tracker) == WHOLE
    await look_for(tracker, watcher, 3)
    assert await coverage(tracker) == GAP


async def test_a_tracker_that_was_overtaken_marks_nobody(tracker: RunningTracker) -> None:
    watcher = Watcher(tracker.services)
    await serving(tracker)
    await look_for(tracker, watcher, 10)
    term = tracker.services.turn.term
    assert term is not None
    await tracker.store.leadership.hand_over(term)
    assert await tracker.store.leadership.take("another") is not None
    with pytest.raises(StaleTermError):
        await look_for(tracker, watcher, 30)
    assert await coverage(tracker) == WHOLE


async def test_a_database_that_was_away_lets_everybody_start_afresh(
    tracker: RunningTracker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("meshnet_tracker.watcher.LOOK_SECONDS", 0.001)
    watcher = Watcher(tracker.services)
    await serving(tracker)
    await look_for(tracker, watcher, 20)
    with closing(sqlite3.connect(tmp_path / "tracker.sqlite3", isolation_level=None)) as raw:
        raw.execute("ALTER TABLE signing_keys RENAME TO hidden")
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(watcher.run())
            await until(lambda: watcher._patient_from == tracker.clock.now())
            running.cancel()
        raw.execute("ALTER TABLE hidden RENAME TO signing_keys")
    await look_for(tracker, watcher, 23)
    assert await coverage(tracker) == WHOLE
    await look_for(tracker, watcher, 2)
    assert await coverage(tracker) == GAP


async def test_when_many_fall_silent_at_once_only_those_are_lost_that_do_not_answer(
    tracker: RunningTracker,
) -> None:
    watcher = Watcher(tracker.services)
    app = web.Application()
    app.add_routes([web.get("/healthz", _say_ok)])
    async with served(app) as url:
        for number in range(4):
            await tracker.serve(f"well-{number}", url, shard(0, 6))
        for number in range(3):
            await tracker.serve(f"away-{number}", "http://127.0.0.1:1", shard(0, 6))
        await look_for(tracker, watcher, 25)
    names = {record.worker_id: record.is_lost for record in await tracker.store.workers()}
    assert {name for name, is_lost in names.items() if is_lost} == {"away-0", "away-1", "away-2"}
    assert tracker.services.frozen.is_set()
    await tracker.services.rebalance.wait(0)
    await look_for(tracker, watcher, 1)
    # The others answered, and that counts like a heartbeat.
    assert not tracker.services.frozen.is_set()
    assert tracker.services.rebalance.is_rung


async def test_a_few_that_fall_silent_are_not_probed(tracker: RunningTracker) -> None:
    watcher = Watcher(tracker.services)
    app = web.Application()
    app.add_routes([web.get("/healthz", _say_ok)])
    async with served(app) as url:
        await tracker.serve("w1", url, shard(0, 6))
        await look_for(tracker, watcher, 26)
    assert await coverage(tracker) == GAP
    assert not tracker.services.frozen.is_set()


async def test_a_key_that_was_added_by_another_process_signs_within_a_second(
    tracker: RunningTracker,
) -> None:
    await tracker.store.add_signing_key(added := fresh_key(NOW))
    await look_for(tracker, Watcher(tracker.services), 1)
    assert ticket_key_id(tracker.services.signer.sign(ticket())) == added.key_id


async def test_sessions_that_can_be_renewed_no_more_are_forgotten(tracker: RunningTracker) -> None:
    watcher = Watcher(tracker.services)
    await tracker.store.move_head("s1", 1, NOW)
    tracker.clock.advance(tracker.services.settings.renewal_seconds)
    await watcher.look()
    assert (await tracker.store.renewals("s1")).head_since == 2
    await look_for(tracker, watcher, 1)
    assert (await tracker.store.renewals("s1")).head_since == 0


async def issue_of(
    tracker: RunningTracker, *planned: RebalanceDirective, deadline_seconds: float
) -> None:
    """Issue under this Tracker's own term."""
    term = tracker.services.turn.term
    assert term is not None
    plans = (await tracker.store.load_snapshot()).issued_plans
    await tracker.store.issue_directives(
        planned, plans, deadline_seconds, tracker.clock.now(), term
    )


async def _say_ok(request: web.Request) -> web.Response:
    del request
    return web.Response()


async def test_a_worker_that_has_cooled_down_is_planned_for_at_once(
    tracker: RunningTracker,
) -> None:
    worker = await tracker.join()
    await tracker.reconciler().reconcile_once()
    (directive,) = await worker.directives()
    await worker.report(directive, DirectiveState.FAILED, reason="no room")
    (view,) = (await tracker.store.load_snapshot()).snapshot.workers
    cooling_seconds = round(view.cooling_until - tracker.clock.now())
    assert cooling_seconds > 2
    watcher = Watcher(tracker.services)
    await look_for(tracker, watcher, cooling_seconds - 1)
    await tracker.services.rebalance.wait(0)
    assert not tracker.services.rebalance.is_rung
    await look_for(tracker, watcher, 1)
    assert tracker.services.rebalance.is_rung
