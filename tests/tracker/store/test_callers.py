from meshnet_common.ids import WorkerId
from meshnet_common.protocol.messages import DirectiveReport, DirectiveState
from meshnet_tracker.records import Joining, Poll, Reporting
from meshnet_tracker.store.store import Store
from tests.tracker.builders import NOW, TOKEN_SHA256, load, registration, shard
from tests.tracker.store.meshes import beat, issue, join, open_for

W1, W2 = WorkerId("w1"), WorkerId("w2")
WRONG = "f" * 64


async def test_workers_that_come_together_are_all_taken_in(store: Store) -> None:
    await join(store, "w1", shard(0, 6))
    joining = [Joining(registration(name), TOKEN_SHA256) for name in ("w1", "w2", "w3")]
    await store.callers.register(joining, NOW + 1)
    workers = await store.workers()
    assert [worker.worker_id for worker in workers] == ["w1", "w2", "w3"]
    assert not any(worker.shards or worker.is_heard for worker in workers)


async def test_of_two_registrations_of_one_worker_the_last_counts(store: Store) -> None:
    first = Joining(registration("w1", url="http://a:1"), WRONG)
    second = Joining(registration("w1", url="http://b:1"), TOKEN_SHA256)
    await store.callers.register([first, second], NOW)
    (worker,) = await store.workers()
    assert worker.url == "http://b:1"
    assert await store.callers.know([(W1, WRONG), (W1, TOKEN_SHA256)]) == (False, True)


async def test_only_who_shows_its_token_leaves(store: Store) -> None:
    await join(store, "w1")
    await join(store, "w2")
    assert await store.callers.leave([(W1, WRONG), (W2, TOKEN_SHA256)], NOW) == (False, True)
    assert [worker.worker_id for worker in await store.workers()] == ["w1"]
    assert await store.callers.know([(W1, TOKEN_SHA256), (W2, TOKEN_SHA256)]) == (True, False)


async def test_who_left_and_comes_again_is_a_new_worker(store: Store) -> None:
    await join(store, "w1", shard(0, 6))
    await store.callers.leave([(W1, TOKEN_SHA256)], NOW)
    await join(store, "w1")
    (worker,) = await store.workers()
    assert (worker.shards, worker.is_lost, worker.failures) == ((), False, 0)
    assert not await beat(store, "w1")


async def test_each_poll_gets_its_own_directives_above_its_epoch(store: Store) -> None:
    await join(store, "w1")
    await join(store, "w2")
    await issue(store, load("w1", 0, 3), load("w2", 3, 6))
    (order,) = await open_for(store, "w1")
    found = await store.callers.poll(
        [
            Poll(W1, TOKEN_SHA256, 0),
            Poll(W1, TOKEN_SHA256, order.epoch),
            Poll(W2, WRONG, 0),
            Poll(W2, TOKEN_SHA256, order.epoch + 5),
        ]
    )
    assert [answer.is_known for answer in found] == [True, True, False, True]
    assert [answer.is_ahead for answer in found] == [False, False, False, True]
    assert (found[0].directives, found[1].directives, found[3].directives) == ((order,), (), ())


async def test_reports_that_come_together_build_on_each_other(store: Store) -> None:
    await join(store, "w1")
    await join(store, "w2")
    await issue(store, load("w1", 0, 3), load("w2", 3, 6))
    (first,), (second,) = await open_for(store, "w1"), await open_for(store, "w2")

    def says(worker_id: WorkerId, order: str, state: DirectiveState, token: str) -> Reporting:
        return Reporting(worker_id, token, order, DirectiveReport(state=state))

    reported = await store.callers.report(
        [
            says(W1, first.id, DirectiveState.LOADING, TOKEN_SHA256),
            says(W1, first.id, DirectiveState.READY, TOKEN_SHA256),
            says(W1, first.id, DirectiveState.FAILED, TOKEN_SHA256),
            says(W2, second.id, DirectiveState.READY, WRONG),
            says(W2, first.id, DirectiveState.FAILED, TOKEN_SHA256),
            says(W2, second.id, DirectiveState.FAILED, TOKEN_SHA256),
        ],
        NOW + 600,
        NOW,
    )
    assert [answer.is_known for answer in reported] == [True, True, True, False, True, True]
    assert [answer.state for answer in reported] == [
        DirectiveState.LOADING,
        DirectiveState.READY,
        DirectiveState.READY,
        None,
        None,
        DirectiveState.FAILED,
    ]
    one, other = await store.workers()
    assert (one.shards, one.failures) == ((shard(0, 3),), 0)
    assert (other.shards, other.failures) == ((), 1)
