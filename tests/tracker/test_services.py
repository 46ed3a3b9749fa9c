import asyncio
from collections.abc import AsyncIterator

import pytest

from meshnet_common.ids import WorkerId
from meshnet_common.protocol.messages import HopFault
from meshnet_common.protocol.tickets import RouteTicket
from meshnet_tracker.services import DOUBTFUL_CODES
from meshnet_tracker.under_way import HeadLostError
from tests.tracker.builders import shard
from tests.tracker.health import FakeWorker, fake_worker, is_frozen, is_overdue, is_well
from tests.tracker.running import RunningTracker, until

TOLD_BY_ITSELF = (
    "engine_lost",
    "engine_failed",
    "not_serving",
    "draining",
    "bad_segment",
    "lease_expired",
)


@pytest.fixture
async def tail() -> AsyncIterator[FakeWorker]:
    async with fake_worker(is_overdue) as worker:
        yield worker


async def ticket_over(tracker: RunningTracker, tail: FakeWorker) -> RouteTicket:
    """Serve with w1 and the tail; return the ticket of a Session over both."""
    await tracker.serve("w1", "http://127.0.0.1:1", shard(0, 3))
    await tracker.serve("tail", tail.url, shard(3, 6))
    answer = (await tracker.get("/v1/route/tiny")).json
    await tracker.services.rebalance.wait(0)
    return await tracker.services.signer.verify(answer["ticket"])


async def lost(tracker: RunningTracker) -> list[str]:
    return [record.worker_id for record in await tracker.store.workers() if record.is_lost]


def fault(worker_id: str = "tail", code: str = "peer_lost") -> HopFault:
    return HopFault(worker_id=worker_id, code=code)


@pytest.mark.parametrize("code", sorted(DOUBTFUL_CODES))
async def test_a_reported_worker_that_does_not_answer_is_lost_at_once(
    tracker: RunningTracker, tail: FakeWorker, code: str
) -> None:
    ticket = await ticket_over(tracker, tail)
    await tracker.services.report_fault(ticket, [fault(code=code)])
    assert (tail.asked, await lost(tracker)) == (1, ["tail"])
    assert tracker.services.rebalance.is_rung
    workers = (await tracker.services.view.snapshot()).workers
    assert [worker.worker_id for worker in workers] == ["w1"]


async def test_a_worker_that_answers_is_never_lost_by_a_report(
    tracker: RunningTracker, tail: FakeWorker
) -> None:
    tail.condition = is_well
    ticket = await ticket_over(tracker, tail)
    await tracker.services.report_fault(ticket, [fault()])
    assert (tail.asked, await lost(tracker)) == (1, [])
    assert not tracker.services.rebalance.is_rung


@pytest.mark.parametrize("code", TOLD_BY_ITSELF)
async def test_a_worker_that_told_of_its_fault_lives_and_is_not_asked(
    tracker: RunningTracker, tail: FakeWorker, code: str
) -> None:
    ticket = await ticket_over(tracker, tail)
    await tracker.services.report_fault(ticket, [fault(code=code)])
    assert (tail.asked, await lost(tracker)) == (0, [])


async def test_only_workers_of_the_tickets_own_route_can_be_reported(
    tracker: RunningTracker, tail: FakeWorker
) -> None:
    ticket = await ticket_over(tracker, tail)
    await tracker.serve("bystander", tail.url, shard(3, 6))
    await tracker.services.report_fault(ticket, [fault("bystander"), fault("unknown")])
    assert (tail.asked, await lost(tracker)) == (0, [])


async def test_a_lost_worker_is_not_asked_again(tracker: RunningTracker, tail: FakeWorker) -> None:
    ticket = await ticket_over(tracker, tail)
    for _ in range(2):
        await tracker.services.report_fault(ticket, [fault(), fault()])
    assert tail.asked == 1


async def test_reports_at_once_share_one_probe(tracker: RunningTracker, tail: FakeWorker) -> None:
    tail.condition = is_frozen
    ticket = await ticket_over(tracker, tail)
    async with asyncio.TaskGroup() as tasks:
        for _ in range(5):
            tasks.create_task(tracker.services.report_fault(ticket, [fault()]))
    assert (tail.asked, await lost(tracker)) == (1, ["tail"])


async def test_answers_from_a_head_worker_that_is_marked_as_lost_end(
    tracker: RunningTracker, tail: FakeWorker
) -> None:
    ticket = await ticket_over(tracker, tail)

    async def passing_on() -> bool:
        try:
            async with tracker.services.answers.of_head(WorkerId("tail")):
                await asyncio.Event().wait()
        except HeadLostError:
            return True
        return False

    async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
        answer = tasks.create_task(passing_on())
        await asyncio.sleep(0)
        await tracker.services.report_fault(ticket, [fault()])
        assert await answer


async def test_a_worker_that_registered_again_during_its_probe_is_not_lost(
    tracker: RunningTracker, tail: FakeWorker
) -> None:
    tail.condition = is_frozen
    ticket = await ticket_over(tracker, tail)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(tracker.services.report_fault(ticket, [fault()]))
        await until(lambda: tail.asked == 1)
        tracker.clock.advance(0.5)
        await tracker.serve("tail", tail.url, shard(3, 6))
    assert await lost(tracker) == []


async def test_heartbeats_of_a_worker_that_nobody_reaches_do_not_bring_it_back(
    tracker: RunningTracker, tail: FakeWorker
) -> None:
    ticket = await ticket_over(tracker, tail)
    worker = await tracker.serve("tail", tail.url, shard(3, 6))
    await tracker.services.report_fault(ticket, [fault()])
    assert (await worker.beat(shard(3, 6))).status == 200
    assert await lost(tracker) == ["tail"]
    tail.condition = is_well
    assert (await worker.beat(shard(3, 6))).status == 200
    assert await lost(tracker) == []


async def test_a_worker_that_joins_again_is_taken_at_its_word(
    tracker: RunningTracker, tail: FakeWorker
) -> None:
    ticket = await ticket_over(tracker, tail)
    await tracker.services.report_fault(ticket, [fault()])
    await tracker.serve("tail", tail.url, shard(3, 6))
    assert (tail.asked, await lost(tracker)) == (1, [])


async def test_a_tracker_that_no_worker_answers_marks_none_as_lost(
    tracker: RunningTracker, tail: FakeWorker
) -> None:
    ticket = await ticket_over(tracker, tail)
    async with fake_worker(is_overdue) as other:
        await tracker.serve("other", other.url, shard(3, 6))
        await tracker.services.report_fault(ticket, [fault()])
        assert (tail.asked, other.asked, await lost(tracker)) == (1, 1, [])
        other.condition = is_well
        await tracker.services.report_fault(ticket, [fault()])
        assert await lost(tracker) == ["tail"]
