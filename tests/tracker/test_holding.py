import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from aiohttp import web

from meshnet_common.openai.sse import DONE_EVENT
from meshnet_tracker.planning.route_table import RouteTable
from meshnet_tracker.store.errors import DatabaseUnavailableError
from meshnet_tracker.tries import ProxyPolicy
from tests.tracker import heads
from tests.tracker.builders import registration, shard
from tests.tracker.deliveries import (
    BOTH,
    QUICK,
    STREAMED,
    WHERE,
    error_in,
    serving,
    tracker_with,
    unused_url,
)
from tests.tracker.heads import ROLE, STREAM, FakeHead, running_head
from tests.tracker.running import CHAT, RunningTracker, until


@pytest.fixture
async def tracker(tmp_path: Path) -> AsyncIterator[RunningTracker]:
    """A Tracker that knows `tiny`, and is not patient for long."""
    async with tracker_with(tmp_path, QUICK) as running:
        yield running


async def test_an_uncovered_model_is_unavailable_and_its_layers_are_named(
    tracker: RunningTracker,
) -> None:
    small = registration("w1", "http://127.0.0.1:1", vram_bytes=6000)
    await (await tracker.join(small)).beat(shard(0, 4))
    reply = await tracker.post(WHERE, CHAT)
    assert (reply.status, reply.error["code"]) == (503, "model_unavailable")
    assert "of its layers 0-5, 4-5 have no ready worker" in reply.error["message"]
    assert reply.headers["Retry-After"] == "5"
    assert tracker.services.rebalance.is_rung


async def test_a_head_that_is_down_is_a_502_when_nobody_else_can_begin(
    tracker: RunningTracker,
) -> None:
    await tracker.serve("w1", unused_url(), shard(0, 6))
    reply = await tracker.post(WHERE, CHAT)
    assert (reply.status, reply.error["code"]) == (502, "upstream_failed")
    assert "none of its layers 0-5 has a" in reply.error["message"]


async def test_a_loss_without_another_head_worker_names_the_layers(
    tracker: RunningTracker,
) -> None:
    async with serving(tracker, heads.dies_after(3)) as (head,):
        head.is_well = False
        reply = await tracker.post(WHERE, STREAMED)
        assert reply.status == 200
        assert reply.body.startswith(b"data: " + ROLE)
        assert error_in(reply)["code"] == "worker_lost"
        assert "none of its layers 0-5 has a" in error_in(reply)["message"]


@BOTH
@pytest.mark.parametrize("is_begun", [False, True], ids=["before", "after"])
async def test_an_answer_waits_for_layers_that_are_about_to_be_served(
    tracker: RunningTracker, chat: dict[str, object], answer: bytes, is_begun: bool
) -> None:
    async with (
        asyncio.timeout(10),
        running_head(heads.streams) as late,
        running_head(heads.dies_after(3)) as lost,
        asyncio.TaskGroup() as tasks,
    ):
        lost.is_well = False
        if is_begun:
            await tracker.serve("w1", lost.url, shard(0, 6))
        joining = await tracker.join(registration("w2", late.url))
        reply = tasks.create_task(tracker.post(WHERE, chat))
        await until(lambda: tracker.services.rebalance.is_rung and len(lost.bodies) == is_begun)
        assert not reply.done()
        await joining.beat(shard(0, 6))
    assert (reply.result().status, reply.result().body) == (200, answer)


@asynccontextmanager
async def losing_its_tail(tracker: RunningTracker) -> AsyncIterator[FakeHead]:
    """Serve on two Workers; in mid-answer the second leaves, and the first gives up once."""

    async def gives_up(head: FakeHead, request: web.Request) -> web.StreamResponse:
        await tail.leave()
        return await heads.loses_its_route_after(3)(head, request)

    async with running_head(heads.at_first(1, gives_up)) as head:
        await tracker.serve("w1", head.url, shard(0, 3))
        tail = await tracker.serve("w2", unused_url(), shard(3, 6))
        yield head


@BOTH
async def test_a_head_worker_that_gave_up_goes_on_when_the_layers_are_back(
    tracker: RunningTracker, chat: dict[str, object], answer: bytes
) -> None:
    async with (
        asyncio.timeout(10),
        losing_its_tail(tracker) as head,
        asyncio.TaskGroup() as tasks,
    ):
        reply = tasks.create_task(tracker.post(WHERE, chat))
        await until(lambda: tracker.services.rebalance.is_rung and bool(head.bodies))
        assert not reply.done()
        await tracker.serve("w3", unused_url(), shard(3, 6))
    assert (reply.result().status, reply.result().body) == (200, answer)
    assert len(head.bodies) == 2
    assert head.record is not None


async def test_layers_that_do_not_come_back_in_time_are_named_in_one_error(
    tmp_path: Path,
) -> None:
    policy = ProxyPolicy(connect_backoff_seconds=0.05, hold_seconds=0.3)
    async with tracker_with(tmp_path, policy) as tracker, losing_its_tail(tracker) as head:
        reply = await tracker.post(WHERE, STREAMED)
        error = error_in(reply)
        assert (error["code"], len(head.bodies)) == ("worker_lost", 1)
        assert "of its layers 0-5, 3-5 have no ready worker" in error["message"]
        assert reply.body.count(b'"error"') == 1


async def test_waiting_ends_at_its_deadline(tmp_path: Path) -> None:
    policy = ProxyPolicy(connect_backoff_seconds=0.05, hold_seconds=0.2)
    async with tracker_with(tmp_path, policy) as tracker, asyncio.timeout(5):
        await tracker.join(registration("w2", unused_url()))
        reply = await tracker.post(WHERE, STREAMED)
        assert (reply.status, reply.error["code"]) == (503, "model_unavailable")
        assert "none of its layers 0-5 has a" in reply.error["message"]


SOON = replace(QUICK, ack_after_seconds=0.1, keep_alive_seconds=0.1)
AT_ONCE = replace(QUICK, ack_after_seconds=0.0)


async def test_who_waits_for_long_is_acknowledged_and_sees_that_the_answer_is_alive(
    tmp_path: Path,
) -> None:
    async with (
        asyncio.timeout(10),
        tracker_with(tmp_path, SOON) as tracker,
        serving(tracker, heads.lives_after(0)) as (head,),
        tracker.session.post(f"{tracker.url}{WHERE}", json=STREAMED) as answer,
    ):
        assert await answer.content.readline() == b": accepted; queued position 0\n"
        for _ in range(2):
            assert await answer.content.readline() == b": keep-alive\n"
        head.go_on.set()
        assert (await answer.content.read()).endswith(STREAM)


async def test_an_error_within_the_grace_has_its_own_status(tmp_path: Path) -> None:
    patient = replace(QUICK, ack_after_seconds=60.0, hold_seconds=0.5)
    async with asyncio.timeout(10), tracker_with(tmp_path, patient) as tracker:
        await tracker.join(registration("w2", unused_url()))
        reply = await tracker.post(WHERE, STREAMED)
        assert (reply.status, reply.error["code"]) == (503, "model_unavailable")


async def test_an_error_after_the_acknowledgement_is_an_event(tmp_path: Path) -> None:
    policy = replace(AT_ONCE, hold_seconds=0.5)
    async with asyncio.timeout(10), tracker_with(tmp_path, policy) as tracker:
        await tracker.join(registration("w2", unused_url()))
        reply = await tracker.post(WHERE, STREAMED)
        assert reply.status == 200
        assert reply.body.startswith(b": accepted; queued position 0\ndata: ")
        assert reply.body.count(b": accepted") == 1
        assert error_in(reply)["code"] == "model_unavailable"


async def test_a_prompt_that_turns_out_too_long_after_the_acknowledgement_is_one_final_event(
    tmp_path: Path,
) -> None:
    refuses = heads.loses_its_route_after(0, code="context_length_exceeded", status=400)
    async with (
        asyncio.timeout(10),
        tracker_with(tmp_path, AT_ONCE) as tracker,
        serving(tracker, refuses, heads.streams) as (_, second),
    ):
        reply = await tracker.post(WHERE, STREAMED)
        assert reply.status == 200
        comment, error, done, rest = reply.body.replace(b"\ndata:", b"\n\ndata:", 1).split(b"\n\n")
        assert comment == b": accepted; queued position 0"
        assert error.startswith(b'data: {"error":')
        assert error_in(reply)["code"] == "context_length_exceeded"
        assert {"message", "type", "param", "code"} <= error_in(reply).keys()
        assert (done + b"\n\n", rest) == (DONE_EVENT, b"")
        assert second.bodies == []


async def test_who_waits_hears_how_many_are_before_it_and_when_they_are_fewer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("meshnet_common.edge.client_stream.POSITION_SECONDS", 0.05)
    where = f"{{}}{WHERE}".format
    async with asyncio.timeout(20), tracker_with(tmp_path, AT_ONCE) as tracker:
        await tracker.join(registration("w2", unused_url()))
        first = await tracker.session.post(where(tracker.url), json=STREAMED)
        assert await first.content.readline() == b": accepted; queued position 0\n"
        async with tracker.session.post(where(tracker.url), json=STREAMED) as second:
            assert await second.content.readline() == b": accepted; queued position 1\n"
            first.close()
            assert await second.content.readline() == b": queued position 0\n"


async def test_who_wants_one_body_sees_nothing_before_it(tmp_path: Path) -> None:
    async with (
        asyncio.timeout(10),
        tracker_with(tmp_path, AT_ONCE) as tracker,
        serving(tracker, heads.lives_after(0)) as (head,),
        asyncio.TaskGroup() as tasks,
    ):
        reply = tasks.create_task(tracker.post(WHERE, CHAT))
        await until(lambda: bool(head.bodies))
        head.go_on.set()
        assert (await reply).body == heads.WHOLE


async def test_a_database_that_fails_after_the_acknowledgement_is_an_event(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    acknowledged = asyncio.Event()

    async def is_away() -> RouteTable:
        await acknowledged.wait()
        raise DatabaseUnavailableError

    async with (
        asyncio.timeout(10),
        tracker_with(tmp_path, AT_ONCE) as tracker,
        serving(tracker, heads.streams),
    ):
        monkeypatch.setattr(tracker.services.view, "routes", is_away)
        async with tracker.session.post(f"{tracker.url}{WHERE}", json=STREAMED) as answer:
            assert await answer.content.readline() == b": accepted; queued position 0\n"
            acknowledged.set()
            ending = await answer.content.read()
    assert b"database_unavailable" in ending
    assert ending.endswith(b"\n\n" + DONE_EVENT)


async def test_who_waits_at_a_head_worker_hears_how_many_are_before_it_there(
    tmp_path: Path,
) -> None:
    policy = replace(SOON, ack_after_seconds=0.5)
    async with (
        asyncio.timeout(10),
        tracker_with(tmp_path, policy) as tracker,
        serving(tracker, heads.lives_after(1, ahead=3)) as (head,),
        tracker.session.post(f"{tracker.url}{WHERE}", json=STREAMED) as answer,
    ):
        assert await answer.content.readline() == b": accepted; queued position 3\n"
        head.go_on.set()
        assert (await answer.content.read()).endswith(STREAM)
