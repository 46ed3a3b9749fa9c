import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from meshnet_common.ids import WorkerId
from meshnet_common.protocol.tickets import RouteTicket
from tests.tracker import heads
from tests.tracker.deliveries import BOTH, QUICK, STREAMED, WHERE, error_in, serving, tracker_with
from tests.tracker.heads import STREAM, FakeHead
from tests.tracker.running import CHAT, RunningTracker, until


@pytest.fixture
async def tracker(tmp_path: Path) -> AsyncIterator[RunningTracker]:
    """A Tracker that knows `tiny`, and is not patient for long."""
    async with tracker_with(tmp_path, QUICK) as running:
        yield running


@pytest.fixture
async def hasty(tmp_path: Path) -> AsyncIterator[RunningTracker]:
    """One that holds no answer for longer than quick retries take."""
    async with tracker_with(tmp_path, replace(QUICK, hold_seconds=1.0)) as running:
        yield running


@pytest.fixture(autouse=True)
def silence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meshnet_tracker.head_call.SILENCE_SECONDS", 1.0)


async def ticket_of(tracker: RunningTracker, head: FakeHead) -> RouteTicket:
    return await tracker.services.signer.verify(head.headers[-1]["x-meshnet-ticket"])


FAULTS = {
    "is down from the start": heads.dies_before_it_answers,
    "dies after its name": heads.dies_after(1),
    "dies in the first event": heads.dies_after(2),
    "dies in a token without text": heads.dies_after(4),
    "dies before the end": heads.dies_after(5),
    "ends without an end": heads.ends_after(3),
    "sends nothing at all": heads.ends_after(0),
    "ends before the last event": heads.ends_after(5),
    "moves before the first token": heads.moves_after(1),
    "moves in the middle": heads.moves_after(4),
    "never answers": heads.hangs_before_it_answers,
    "is silent in the middle": heads.hangs_after(3),
    "is overloaded": heads.is_overloaded,
    "is not ready": heads.is_not_ready,
    "writes junk": heads.writes_junk,
    "streams nothing": heads.answers_without_streaming,
}


@BOTH
@pytest.mark.parametrize("behaviour", FAULTS.values(), ids=FAULTS)
async def test_another_head_worker_goes_on_with_exactly_what_is_missing(
    tracker: RunningTracker,
    behaviour: heads.Behaviour,
    chat: dict[str, object],
    answer: bytes,
) -> None:
    async with serving(tracker, behaviour, heads.streams) as (first, second):
        reply = await tracker.post(WHERE, chat)
        assert (reply.status, reply.body) == (200, answer)
        assert (len(first.bodies), len(second.bodies)) == (1, 1)


async def test_several_head_workers_may_fail_one_after_the_other(tracker: RunningTracker) -> None:
    failing = (heads.dies_after(2), heads.moves_after(1), heads.hangs_after(2), heads.dies_after(1))
    async with serving(tracker, *failing, heads.streams) as asked:
        reply = await tracker.post(WHERE, STREAMED)
        assert (reply.status, reply.body) == (200, STREAM)
        last = await ticket_of(tracker, asked[-1])
        assert last.session_id == (await ticket_of(tracker, asked[0])).session_id
        assert last.incarnation == 5


async def test_the_next_head_worker_gets_the_same_session_and_the_record(
    tracker: RunningTracker,
) -> None:
    async with serving(tracker, heads.dies_after(4), heads.streams) as (first, second):
        await tracker.post(WHERE, STREAMED)
        before, after = await ticket_of(tracker, first), await ticket_of(tracker, second)
        assert after.session_id == before.session_id
        assert after.seed == before.seed
        assert after.incarnation > before.incarnation
        assert second.record is not None
        assert second.record.id == heads.ANSWER_ID
        assert second.record.choices[0].token_ids == (0, 1)


async def test_one_that_broke_off_is_probed_and_marked_as_lost(tracker: RunningTracker) -> None:
    async with serving(tracker, heads.dies_after(3), heads.streams) as (first, second):
        first.is_well = False
        await tracker.post(WHERE, STREAMED)
        assert first.probes == 1
        await tracker.post(WHERE, STREAMED)
        assert (len(first.bodies), len(second.bodies)) == (1, 2)


async def test_one_that_moves_is_not_probed(tracker: RunningTracker) -> None:
    async with serving(tracker, heads.moves_after(3), heads.streams) as (first, _):
        await tracker.post(WHERE, STREAMED)
        assert first.probes == 0


async def test_one_that_the_watcher_finds_lost_is_left_at_once(tracker: RunningTracker) -> None:
    async with (
        asyncio.timeout(10),
        serving(tracker, heads.lives_after(0), heads.streams) as (first, _),
        asyncio.TaskGroup() as tasks,
    ):
        reply = tasks.create_task(tracker.post(WHERE, STREAMED))
        await until(lambda: bool(first.bodies))

        def is_cut_off() -> bool:
            tracker.services.answers.cut(WorkerId("w0"))
            return reply.done()

        await until(is_cut_off)
        assert first.probes == 0
    assert reply.result().body == STREAM


@BOTH
async def test_the_only_head_worker_is_asked_again(
    tracker: RunningTracker, chat: dict[str, object], answer: bytes
) -> None:
    async with serving(tracker, heads.dies_at_first(2)) as (head,):
        reply = await tracker.post(WHERE, chat)
        assert (reply.status, reply.body) == (200, answer)
        assert len(head.bodies) == 3


async def test_spent_retries_end_no_hold(
    tracker: RunningTracker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("meshnet_tracker.tries.SPENT_REST_SECONDS", 0.3)
    times = 2 + QUICK.connect_retries
    async with serving(tracker, heads.at_first(times, heads.dies_before_it_answers)) as (head,):
        reply = await tracker.post(WHERE, STREAMED)
        assert (reply.status, reply.body) == (200, STREAM)
        assert len(head.bodies) == 1 + times


async def test_one_that_cannot_be_reached_is_given_up_at_the_deadline(
    hasty: RunningTracker,
) -> None:
    async with serving(hasty, heads.dies_before_it_answers) as (head,):
        reply = await hasty.post(WHERE, STREAMED)
        assert (reply.status, reply.error["code"]) == (502, "upstream_failed")
        assert len(head.bodies) == 1 + QUICK.connect_retries


async def test_a_refusal_comes_through_when_nobody_else_can_begin(tracker: RunningTracker) -> None:
    async with serving(tracker, heads.is_overloaded) as (head,):
        reply = await tracker.post(WHERE, STREAMED)
        assert (reply.status, reply.error["code"]) == (503, "overloaded")
        assert reply.headers["Retry-After"] == "5"
        assert len(head.bodies) == 1


async def test_one_that_is_not_ready_is_asked_again(hasty: RunningTracker) -> None:
    async with serving(hasty, heads.is_not_ready) as (head,):
        reply = await hasty.post(WHERE, STREAMED)
        assert (reply.status, reply.error["code"]) == (503, "model_unavailable")
        assert len(head.bodies) == 1 + QUICK.connect_retries


@pytest.mark.parametrize("chat", [STREAMED, CHAT])
async def test_what_a_client_did_wrong_is_told_at_once(
    tracker: RunningTracker, chat: dict[str, object]
) -> None:
    async with serving(tracker, heads.refuses_ticket, heads.streams) as (_, second):
        assert (await tracker.post(WHERE, chat)).status == 403
        assert second.bodies == []


@pytest.mark.parametrize("chat", [STREAMED, CHAT])
async def test_a_failure_that_a_head_worker_tells_of_has_its_status(
    tracker: RunningTracker, chat: dict[str, object]
) -> None:
    async with serving(tracker, heads.tells_of_a_failure, heads.streams) as (_, second):
        reply = await tracker.post(WHERE, chat)
        assert (reply.status, reply.error["code"]) == (503, "overloaded")
        assert reply.headers["Retry-After"] == "5"
        assert second.bodies == []


@BOTH
@pytest.mark.parametrize("blocks", [0, 1, 3])
async def test_when_a_route_is_lost_another_head_worker_goes_on(
    tracker: RunningTracker, chat: dict[str, object], answer: bytes, blocks: int
) -> None:
    async with serving(tracker, heads.loses_its_route_after(blocks), heads.streams) as asked:
        reply = await tracker.post(WHERE, chat)
        assert (reply.status, reply.body) == (200, answer)
        first, second = asked
        assert (len(first.bodies), len(second.bodies)) == (1, 1)
        before, after = await ticket_of(tracker, first), await ticket_of(tracker, second)
        assert (after.session_id, after.incarnation) == (before.session_id, 2)
        assert first.probes == 0


async def test_a_route_that_is_lost_wherever_it_is_tried_ends_with_one_error(
    tracker: RunningTracker,
) -> None:
    at_once = heads.loses_its_route_after(1)
    in_the_middle = heads.at_first(1, heads.loses_its_route_after(3), at_once)
    async with serving(tracker, in_the_middle, at_once) as asked:
        reply = await tracker.post(WHERE, STREAMED)
        assert reply.status == 200
        error = error_in(reply)
        assert (error["code"], error["message"]) == ("worker_lost", "Gone.")
        assert reply.body.count(b'"error"') == 1
        assert [len(head.bodies) for head in asked] == [2, 2]


async def test_a_route_that_is_not_there_yet_is_asked_for_again(tracker: RunningTracker) -> None:
    lost = heads.loses_its_route_after(1, code="model_unavailable", status=503)
    async with serving(tracker, heads.at_first(2, lost)) as (head,):
        reply = await tracker.post(WHERE, STREAMED)
        assert (reply.status, reply.body) == (200, STREAM)
        assert len(head.bodies) == 3


async def test_an_error_of_the_clients_own_is_final_in_the_stream_too(
    tracker: RunningTracker,
) -> None:
    refuses = heads.loses_its_route_after(0, code="context_length_exceeded", status=400)
    async with serving(tracker, refuses, heads.streams) as (_, second):
        reply = await tracker.post(WHERE, STREAMED)
        assert (reply.status, reply.error["code"]) == (400, "context_length_exceeded")
        assert second.bodies == []


async def test_an_answer_of_an_age_that_goes_on_nowhere_ends_with_what_to_do(
    tracker: RunningTracker,
) -> None:
    async with serving(tracker, heads.hangs_after(3), heads.streams) as (first, second):
        async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
            reply = tasks.create_task(tracker.post(WHERE, STREAMED))
            await until(lambda: bool(first.bodies))
            tracker.clock.advance(tracker.services.settings.renewal_seconds + 1)
        assert error_in(reply.result())["code"] == "worker_lost"
        assert "send the request again" in error_in(reply.result())["message"]
        assert second.bodies == []
