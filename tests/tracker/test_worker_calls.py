import asyncio

import pytest

from meshnet_common.edge.clock import ManualClock
from meshnet_common.ids import WorkerId
from meshnet_common.protocol.messages import DirectiveReport, DirectiveState
from meshnet_tracker.records import Poll, Reporting
from meshnet_tracker.store.errors import BadTokenError, UnknownDirectiveError
from meshnet_tracker.store.store import Store
from meshnet_tracker.worker_calls import WorkerCalls
from tests.tracker.builders import NOW, TOKEN_SHA256, heartbeat, load, registration, shard
from tests.tracker.store.meshes import issue

W1 = WorkerId("w1")
WRONG = "f" * 64
DONE = DirectiveReport(state=DirectiveState.READY)


@pytest.fixture
def calls(store: Store) -> WorkerCalls:
    return WorkerCalls(store, ManualClock(NOW), 600.0)


async def test_a_heartbeat_is_answered_once_it_is_stored(store: Store, calls: WorkerCalls) -> None:
    await calls.register(registration("w1"), TOKEN_SHA256)
    assert await calls.beat(W1, TOKEN_SHA256, heartbeat(shard(0, 6)))
    assert not await calls.beat(W1, TOKEN_SHA256, heartbeat(shard(0, 6)))
    (worker,) = await store.workers()
    assert worker.shards == (shard(0, 6),)


async def test_a_hundred_workers_at_once_are_each_answered(
    store: Store, calls: WorkerCalls
) -> None:
    names = [WorkerId(f"w{number:03}") for number in range(100)]
    async with asyncio.TaskGroup() as tasks:
        for name in names:
            tasks.create_task(calls.register(registration(name), TOKEN_SHA256))
    async with asyncio.TaskGroup() as tasks:
        beats = [tasks.create_task(calls.beat(n, TOKEN_SHA256, heartbeat())) for n in names]
    assert all(beat.result() for beat in beats)
    assert [worker.worker_id for worker in await store.workers()] == names
    async with asyncio.TaskGroup() as tasks:
        for name in names[1:]:
            tasks.create_task(calls.leave(name, TOKEN_SHA256))
    assert [worker.worker_id for worker in await store.workers()] == names[:1]


async def test_without_its_token_nothing_is_done(store: Store, calls: WorkerCalls) -> None:
    await calls.register(registration("w1"), TOKEN_SHA256)
    await calls.authenticate(W1, TOKEN_SHA256)
    for refused in (
        calls.beat(W1, WRONG, heartbeat(shard(0, 6))),
        calls.leave(W1, WRONG),
        calls.authenticate(W1, WRONG),
        calls.poll(Poll(W1, WRONG, 0)),
        calls.report(Reporting(W1, WRONG, "any", DONE)),
    ):
        with pytest.raises(BadTokenError):
            await refused
    (worker,) = await store.workers()
    assert not worker.is_heard


async def test_an_old_token_is_void_whoever_took_the_new_registration(
    store: Store, calls: WorkerCalls
) -> None:
    await calls.register(registration("w1"), TOKEN_SHA256)
    await calls.beat(W1, TOKEN_SHA256, heartbeat())
    elsewhere = WorkerCalls(store, ManualClock(NOW), 600.0)
    await elsewhere.register(registration("w1"), WRONG)
    with pytest.raises(BadTokenError):
        await calls.beat(W1, TOKEN_SHA256, heartbeat())
    assert await calls.beat(W1, WRONG, heartbeat())


async def test_a_poll_finds_what_is_ordered(store: Store, calls: WorkerCalls) -> None:
    await calls.register(registration("w1"), TOKEN_SHA256)
    await calls.beat(W1, TOKEN_SHA256, heartbeat())
    await issue(store, load("w1", 0, 3))
    found = await calls.poll(Poll(W1, TOKEN_SHA256, 0))
    assert [directive.end_layer for directive in found.directives] == [3]


async def test_a_report_is_answered_with_the_state_of_its_directive(
    store: Store, calls: WorkerCalls
) -> None:
    await calls.register(registration("w1"), TOKEN_SHA256)
    await calls.beat(W1, TOKEN_SHA256, heartbeat())
    await issue(store, load("w1", 0, 3))
    (order,) = (await calls.poll(Poll(W1, TOKEN_SHA256, 0))).directives
    state = await calls.report(Reporting(W1, TOKEN_SHA256, order.id, DONE))
    assert state is DirectiveState.READY
    with pytest.raises(UnknownDirectiveError):
        await calls.report(Reporting(W1, TOKEN_SHA256, "another", DONE))


async def test_a_load_with_progress_gets_the_whole_deadline_again(store: Store) -> None:
    clock = ManualClock(NOW)
    calls = WorkerCalls(store, clock, 600.0)
    await calls.register(registration("w1"), TOKEN_SHA256)
    await calls.beat(W1, TOKEN_SHA256, heartbeat())
    await issue(store, load("w1", 0, 3))
    (order,) = (await calls.poll(Poll(W1, TOKEN_SHA256, 0))).directives
    clock.advance(50)
    progress = DirectiveReport(state=DirectiveState.LOADING, bytes_done=10, bytes_total=20)
    await calls.report(Reporting(W1, TOKEN_SHA256, order.id, progress))
    (moved,) = (await calls.poll(Poll(W1, TOKEN_SHA256, 0))).directives
    assert moved.deadline == NOW + 50 + 600
