from pathlib import Path

from meshnet_common.protocol.tickets import ticket_key_id
from meshnet_tracker.signing import fresh_key
from meshnet_tracker.store.store import Store
from meshnet_tracker.watcher import Watcher
from tests.common.builders import ticket
from tests.tracker.builders import NOW, load, preset, shard
from tests.tracker.running import JoinedWorker, RunningTracker
from tests.tracker.store.meshes import issue

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
    await look_for(tracker, watcher, 20)
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
    await look_for(tracker, watcher, 11)
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
    await look_for(tracker, watcher, 11)
    assert await coverage(tracker) == WHOLE
    await look_for(tracker, watcher, 2)
    assert await coverage(tracker) == GAP


async def test_a_lost_worker_that_comes_back_serves_again(tracker: RunningTracker) -> None:
    watcher = Watcher(tracker.services)
    worker = await serving(tracker)
    await look_for(tracker, watcher, 14)
    assert await coverage(tracker) == GAP
    assert (await worker.beat(shard(0, 6))).status == 200
    assert await coverage(tracker) == WHOLE


async def test_an_expired_directive_asks_for_a_new_plan(tracker: RunningTracker) -> None:
    await serving(tracker)
    await issue(tracker.store, load("w1", 0, 6), load("w1", 6, 8), deadline_seconds=5)
    watcher = Watcher(tracker.services)
    await tracker.services.rebalance.wait(0)
    await look_for(tracker, watcher, 6)
    (worker,) = await tracker.store.workers()
    assert (worker.directives, worker.failures) == ((), 1)
    assert tracker.services.rebalance.is_rung


async def test_a_preset_added_by_another_process_is_noticed(
    tracker: RunningTracker, tmp_path: Path
) -> None:
    watcher = Watcher(tracker.services)
    await watcher.look()
    assert not tracker.services.rebalance.is_rung
    other = Store.open(str(tmp_path / "tracker.sqlite3"))
    await other.add_preset(preset("other"), NOW)
    await other.close()
    await watcher.look()
    assert tracker.services.rebalance.is_rung


async def test_directives_issued_by_another_tracker_wake_the_poll(
    tracker: RunningTracker, tmp_path: Path
) -> None:
    worker = await tracker.join()
    watcher = Watcher(tracker.services)
    await watcher.look()
    with tracker.services.directives.listen(worker.worker_id) as bell:
        other = Store.open(str(tmp_path / "tracker.sqlite3"))
        await issue(other, load("w1", 0, 6))
        await other.close()
        await watcher.look()
        assert bell.is_rung


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
