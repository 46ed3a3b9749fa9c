import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import msgspec
import pytest

from meshnet_common.protocol.tickets import verify_ticket
from tests.tracker import heads
from tests.tracker.builders import shard
from tests.tracker.handlers.test_routes import published_key
from tests.tracker.heads import DONE, EVENTS, FakeHead, running_head
from tests.tracker.running import CHAT, RunningTracker, until

WHERE = "/v1/chat/completions"


@asynccontextmanager
async def head_of(
    tracker: RunningTracker, behaviour: heads.Behaviour, worker_id: str = "w1"
) -> AsyncIterator[FakeHead]:
    """Let a Head Worker that behaves like this serve the whole model."""
    async with running_head(behaviour) as head:
        await tracker.serve(worker_id, head.url, shard(0, 6))
        yield head


def unused_url() -> str:
    """Return a URL where nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}"


def events_of(body: bytes) -> list[bytes]:
    return [event for event in body.split(b"\n\n") if event]


async def test_an_answer_streams_through_byte_for_byte(tracker: RunningTracker) -> None:
    async with head_of(tracker, heads.streams):
        reply = await tracker.post(WHERE, {**CHAT, "stream": True})
    assert (reply.status, reply.body) == (200, b"".join(EVENTS) + DONE)
    assert reply.headers["Content-Type"] == "text/event-stream"
    assert reply.headers["Cache-Control"] == "no-cache"
    assert reply.headers["X-Accel-Buffering"] == "no"


async def test_a_whole_answer_comes_through_with_its_type_and_headers(
    tracker: RunningTracker,
) -> None:
    async with head_of(tracker, heads.answers_whole):
        reply = await tracker.post("/chat/completions", CHAT)
    assert (reply.status, reply.json) == (200, {"object": "chat.completion"})
    assert reply.headers["Content-Type"].startswith("application/json")
    assert reply.headers["x-own"] == "kept"


async def test_the_first_event_arrives_while_the_head_still_works(
    tracker: RunningTracker,
) -> None:
    async with (
        asyncio.timeout(10),
        head_of(tracker, heads.hangs_in_mid_stream) as head,
        tracker.session.post(f"{tracker.url}{WHERE}", json=CHAT) as answer,
    ):
        assert await answer.content.readline() == b": keep-alive\n"
        assert (await answer.content.readline()).startswith(b"data: ")
        head.go_on.set()


async def test_the_head_gets_the_clients_bytes_and_a_ticket_for_its_route(
    tracker: RunningTracker,
) -> None:
    body = b'{ "messages":[{"role":"user","content":"Hi"}],\n "model" : "tiny", "unknown": 1 }'
    async with head_of(tracker, heads.streams) as head:
        reply = await tracker.post(WHERE, body)
    (headers,) = head.headers
    assert head.bodies == [body]
    assert headers["x-request-id"] == reply.headers["x-request-id"]
    token = headers["x-meshnet-ticket"]
    ticket = verify_ticket(token, await published_key(tracker, token))
    assert [hop.worker_id for hop in ticket.hops] == ["w1"]
    assert ticket.admission_seq == 1


async def test_credentials_and_forged_tickets_do_not_reach_a_volunteer(
    tracker: RunningTracker,
) -> None:
    forged = {"authorization": "Bearer mine", "cookie": "a=b", "X-Meshnet-Ticket": "forged"}
    async with (
        head_of(tracker, heads.streams) as head,
        tracker.session.post(f"{tracker.url}{WHERE}", json=CHAT, headers=forged) as answer,
    ):
        await answer.read()
    (headers,) = head.headers
    assert not {"authorization", "cookie"} & {name.lower() for name in headers}
    assert headers.getall("x-meshnet-ticket") != ["forged"]
    assert len(headers.getall("x-meshnet-ticket")) == 1


async def test_an_unknown_model_is_not_found(tracker: RunningTracker) -> None:
    reply = await tracker.post(WHERE, {**CHAT, "model": "nothing"})
    assert (reply.status, reply.error["code"]) == (404, "model_not_found")
    assert reply.error["param"] == "model"


async def test_an_uncovered_model_is_unavailable_and_its_layers_are_named(
    tracker: RunningTracker,
) -> None:
    await tracker.serve("w1", "http://127.0.0.1:1", shard(0, 4))
    reply = await tracker.post(WHERE, CHAT)
    assert (reply.status, reply.error["code"]) == (503, "model_unavailable")
    assert "of its layers 0-5, 4-5 have no ready worker" in reply.error["message"]
    assert reply.headers["Retry-After"] == "5"
    assert tracker.services.rebalance.is_rung


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b"", None),
        (b"[]", None),
        (b'{"model": "tiny"', None),
        (b'{"messages": [{"role": "user", "content": "Hi"}]}', "model"),
        (b'{"model": "tiny", "messages": []}', "messages"),
        (b'{"model": "tiny", "messages": [{"role": "user", "content": "\\ud800"}]}', None),
    ],
)
async def test_a_malformed_body_is_refused_before_anybody_is_asked(
    tracker: RunningTracker, body: bytes, param: str | None
) -> None:
    async with head_of(tracker, heads.streams) as head:
        reply = await tracker.post(WHERE, body)
    assert (reply.status, reply.error["param"]) == (400, param)
    assert head.bodies == []


async def test_a_body_over_the_limit_is_too_large(tracker: RunningTracker) -> None:
    reply = await tracker.post(WHERE, {**CHAT, "user": "x" * (5 << 20)})
    assert (reply.status, reply.error["code"]) == (413, "request_too_large")


@pytest.mark.parametrize(
    "behaviour",
    [heads.dies_before_it_answers, heads.dies_after_a_comment, heads.is_overloaded],
)
async def test_a_head_that_fails_before_its_first_event_is_replaced(
    tracker: RunningTracker, behaviour: heads.Behaviour
) -> None:
    # Both serve the whole model; the one with more sessions is chosen second.
    async with head_of(tracker, behaviour), running_head(heads.streams) as other:
        busy = await tracker.serve("w2", other.url, shard(0, 6))
        await tracker.post(
            f"{busy.where}/heartbeat",
            {
                "shards": [msgspec.to_builtins(shard(0, 6))],
                "sessions": 9,
                "kv_bytes_free": 0,
                "directive_epoch": 0,
            },
            busy.token,
        )
        reply = await tracker.post(WHERE, CHAT)
        assert len(other.bodies) == 1
    assert reply.status == 200
    assert reply.body.endswith(b"".join(EVENTS) + DONE)


async def test_a_head_that_is_down_is_a_502_when_nobody_else_can_begin(
    tracker: RunningTracker,
) -> None:
    await tracker.serve("w1", unused_url(), shard(0, 6))
    reply = await tracker.post(WHERE, CHAT)
    assert (reply.status, reply.error["code"]) == (502, "upstream_failed")


async def test_after_three_heads_that_are_down_the_tracker_gives_up(
    tracker: RunningTracker,
) -> None:
    for number in range(4):
        await tracker.serve(f"w{number}", unused_url(), shard(0, 6))
    reply = await tracker.post(WHERE, CHAT)
    assert (reply.status, reply.error["code"]) == (502, "upstream_failed")


async def test_a_heads_own_refusal_comes_through(tracker: RunningTracker) -> None:
    async with head_of(tracker, heads.refuses_ticket):
        assert (await tracker.post(WHERE, CHAT)).status == 403
    async with head_of(tracker, heads.is_overloaded):
        reply = await tracker.post(WHERE, CHAT)
    assert (reply.status, reply.json["error"]["code"]) == (503, "overloaded")


async def test_a_head_that_dies_in_mid_stream_is_an_error_event_and_never_a_silent_end(
    tracker: RunningTracker,
) -> None:
    async with head_of(tracker, heads.dies_in_mid_event) as head:
        head.go_on.set()
        reply = await tracker.post(WHERE, {**CHAT, "stream": True})
    *text, error, done = events_of(reply.body)
    assert text == events_of(EVENTS[0])
    assert done == b"data: [DONE]"
    told = msgspec.json.decode(error.removeprefix(b"data: "))["error"]
    assert (told["code"], told["type"]) == ("worker_lost", "server_error")


async def test_a_stream_that_just_ends_is_an_error_event(tracker: RunningTracker) -> None:
    async with head_of(tracker, heads.ends_without_done):
        reply = await tracker.post(WHERE, {**CHAT, "stream": True})
    *text, error, done = events_of(reply.body)
    assert text == events_of(b"".join(EVENTS))
    assert b"worker_lost" in error
    assert done == b"data: [DONE]"


@pytest.mark.parametrize("behaviour", [heads.hangs_before_it_answers, heads.hangs_in_mid_stream])
async def test_a_client_that_goes_away_stops_the_head_at_once(
    tracker: RunningTracker, behaviour: heads.Behaviour
) -> None:
    async with head_of(tracker, behaviour) as head:
        timeout = aiohttp.ClientTimeout(total=0.3)
        with pytest.raises(TimeoutError):
            async with tracker.session.post(
                f"{tracker.url}{WHERE}", json=CHAT, timeout=timeout
            ) as answer:
                await answer.read()
        async with asyncio.timeout(2):
            await head.cancelled.wait()


async def test_many_streams_run_at_once(tracker: RunningTracker) -> None:
    async with (
        head_of(tracker, heads.hangs_in_mid_stream) as head,
        asyncio.timeout(20),
        asyncio.TaskGroup() as tasks,
    ):
        replies = [tasks.create_task(tracker.post(WHERE, CHAT)) for _ in range(120)]
        await until(lambda: len(head.bodies) == 120)
        head.go_on.set()
    assert {reply.result().status for reply in replies} == {200}
