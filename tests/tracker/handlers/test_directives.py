import asyncio

import pytest

from meshnet_common.protocol.messages import DirectiveState
from tests.tracker.builders import registration, shard
from tests.tracker.running import RunningTracker, until


async def test_a_poll_answers_at_once_when_a_directive_is_there(tracker: RunningTracker) -> None:
    worker = await tracker.join()
    await tracker.reconciler().reconcile_once()
    async with asyncio.timeout(5):
        (directive,) = await worker.directives(wait=50)
    assert (directive.kind, directive.model, directive.reason) == ("LOAD_SHARD", "tiny", "gap")
    assert (directive.start_layer, directive.end_layer) == (0, 6)


async def test_a_poll_that_waits_is_woken_when_a_directive_is_issued(
    tracker: RunningTracker,
) -> None:
    worker = await tracker.join()
    async with asyncio.timeout(5), asyncio.TaskGroup() as tasks:
        poll = tasks.create_task(worker.directives(wait=50))
        await until(lambda: tracker.services.directives.has_listeners)
        await tracker.reconciler().reconcile_once()
    assert len(poll.result()) == 1


async def test_a_poll_without_news_ends_empty_after_its_wait(tracker: RunningTracker) -> None:
    worker = await tracker.join()
    assert await worker.directives(wait=0.05) == ()


async def test_a_stopping_tracker_lets_polls_go(tracker: RunningTracker) -> None:
    worker = await tracker.join()
    async with asyncio.timeout(5), asyncio.TaskGroup() as tasks:
        poll = tasks.create_task(worker.directives(wait=50))
        await until(lambda: tracker.services.directives.has_listeners)
        tracker.services.directives.close()
    assert poll.result() == ()


@pytest.mark.parametrize(
    "query", ["after=x", "after=-1", f"after={10**30}", "wait=x", "wait=-1", "wait=nan"]
)
async def test_a_poll_with_an_impossible_number_is_refused(
    tracker: RunningTracker, query: str
) -> None:
    worker = await tracker.join()
    reply = await tracker.get(f"{worker.where}/directives?{query}", worker.token)
    assert (reply.status, reply.error["param"]) == (400, query.partition("=")[0])


async def test_directives_need_the_workers_token(tracker: RunningTracker) -> None:
    worker = await tracker.join()
    assert (await tracker.get(f"{worker.where}/directives", "wrong")).status == 401
    assert (await tracker.post(f"{worker.where}/directives/x", {}, "wrong")).status == 401


async def test_a_load_that_is_reported_ready_covers_at_once(tracker: RunningTracker) -> None:
    worker = await tracker.join()
    await tracker.reconciler().reconcile_once()
    (directive,) = await worker.directives()
    for state in (DirectiveState.ACCEPTED, DirectiveState.LOADING, DirectiveState.READY):
        assert (await worker.report(directive, state, bytes_done=10)).json == {"state": state}
    coverage = (await tracker.get("/v1/coverage/tiny")).json
    assert coverage == [{"start_layer": 0, "end_layer": 6, "worker_count": 1}]
    assert await worker.directives() == ()


async def test_a_report_on_an_unknown_directive_is_refused(tracker: RunningTracker) -> None:
    worker = await tracker.join()
    reply = await tracker.post(f"{worker.where}/directives/x", {"state": "ready"}, worker.token)
    assert (reply.status, reply.error["code"]) == (404, "directive_not_found")


async def test_a_worker_that_knows_a_higher_epoch_still_gets_its_directives(
    tracker: RunningTracker,
) -> None:
    worker = await tracker.join(registration("w1"))
    assert await worker.directives(after=500) == ()
    await tracker.reconciler().reconcile_once()
    (directive,) = await worker.directives(after=500)
    assert directive.epoch > 500


async def test_an_expired_directive_is_planned_again_for_somebody_else(
    tracker: RunningTracker,
) -> None:
    slow = await tracker.join(registration("slow"))
    reconciler = tracker.reconciler()
    await reconciler.reconcile_once()
    assert len(await slow.directives()) == 1
    tracker.clock.advance(601)
    await slow.beat()
    term = tracker.services.turn.term
    assert term is not None
    assert len(await tracker.store.expire_directives(tracker.clock.now(), term)) == 1
    other = await tracker.join(registration("other"))
    await reconciler.reconcile_once()
    assert (await slow.directives(), len(await other.directives())) == ((), 1)


async def test_a_drop_is_never_issued_for_the_last_copy(tracker: RunningTracker) -> None:
    worker = await tracker.join()
    await worker.beat(shard(0, 6))
    await tracker.reconciler().reconcile_once()
    assert await worker.directives() == ()
