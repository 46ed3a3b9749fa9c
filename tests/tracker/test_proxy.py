import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest

from meshnet_common.openai.apis import COMPLETIONS
from meshnet_common.protocol.tickets import verify_ticket
from tests.tracker import heads
from tests.tracker.builders import shard
from tests.tracker.handlers.test_routes import published_key
from tests.tracker.heads import STREAM, FakeHead, running_head
from tests.tracker.running import CHAT, RunningTracker, until
from tests.tracker.slow_clients import connected

WHERE = "/v1/chat/completions"
STREAMED = {**CHAT, "stream": True}


@asynccontextmanager
async def head_of(
    tracker: RunningTracker, behaviour: heads.Behaviour, worker_id: str = "w1"
) -> AsyncIterator[FakeHead]:
    """Let a Head Worker that behaves like this serve the whole model."""
    async with running_head(behaviour) as head:
        await tracker.serve(worker_id, head.url, shard(0, 6))
        yield head


async def test_an_answer_streams_through_without_its_notes(tracker: RunningTracker) -> None:
    async with head_of(tracker, heads.streams):
        reply = await tracker.post(WHERE, STREAMED)
    assert (reply.status, reply.body) == (200, STREAM)
    assert reply.headers["Content-Type"] == "text/event-stream"
    assert reply.headers["Cache-Control"] == "no-cache"
    assert reply.headers["X-Accel-Buffering"] == "no"


async def test_a_whole_answer_is_one_body(tracker: RunningTracker) -> None:
    async with head_of(tracker, heads.streams) as head:
        reply = await tracker.post("/chat/completions", CHAT)
    assert (reply.status, reply.body) == (200, heads.WHOLE)
    assert reply.headers["Content-Type"].startswith("application/json")
    assert head.headers[0]["x-meshnet-token-ids"] == "1"


async def test_the_first_event_arrives_while_the_head_still_works(
    tracker: RunningTracker,
) -> None:
    async with (
        asyncio.timeout(10),
        head_of(tracker, heads.hangs_after(3)) as head,
        tracker.session.post(f"{tracker.url}{WHERE}", json=STREAMED) as answer,
    ):
        assert await answer.content.readuntil(b"\n\n") == heads.EVENTS[0]
        assert await answer.content.readuntil(b"\n\n") == heads.EVENTS[1]
        head.go_on.set()
        assert await answer.content.read() == b"".join(heads.EVENTS[2:]) + b"data: [DONE]\n\n"


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


async def test_a_long_body_arrives_whole(tracker: RunningTracker) -> None:
    async with head_of(tracker, heads.streams) as head:
        reply = await tracker.post(WHERE, {**CHAT, "user": "x" * (3 << 20)})
    assert reply.status == 200
    assert len(head.bodies[0]) > 3 << 20
    assert "Transfer-Encoding" not in head.headers[0]


async def test_credentials_and_forged_tickets_do_not_reach_a_volunteer(
    tracker: RunningTracker,
) -> None:
    forged = {
        "authorization": "Bearer mine",
        "cookie": "a=b",
        "X-Meshnet-Ticket": "forged",
        "X-Meshnet-Resume": "1",
    }
    async with (
        head_of(tracker, heads.streams) as head,
        tracker.session.post(f"{tracker.url}{WHERE}", json=CHAT, headers=forged) as answer,
    ):
        await answer.read()
    (headers,) = head.headers
    assert not {"authorization", "cookie", "x-meshnet-resume"} & {name.lower() for name in headers}
    assert headers.getall("x-meshnet-ticket") != ["forged"]
    assert len(headers.getall("x-meshnet-ticket")) == 1


async def test_an_unknown_model_is_not_found(tracker: RunningTracker) -> None:
    reply = await tracker.post(WHERE, {**CHAT, "model": "nothing"})
    assert (reply.status, reply.error["code"]) == (404, "model_not_found")
    assert reply.error["param"] == "model"


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


@pytest.mark.parametrize("behaviour", [heads.hangs_before_it_answers, heads.hangs_after(3)])
@pytest.mark.parametrize("chat", [CHAT, STREAMED])
async def test_a_client_that_goes_away_stops_the_head_at_once(
    tracker: RunningTracker, behaviour: heads.Behaviour, chat: dict[str, object]
) -> None:
    async with head_of(tracker, behaviour) as head:
        timeout = aiohttp.ClientTimeout(total=0.3)
        with pytest.raises(TimeoutError):
            async with tracker.session.post(
                f"{tracker.url}{WHERE}", json=chat, timeout=timeout
            ) as answer:
                await answer.read()
        async with asyncio.timeout(2):
            await head.cancelled.wait()


async def test_a_client_that_does_not_read_stops_the_head(
    tracker: RunningTracker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("meshnet_common.edge.client_stream.LOOK_SECONDS", 0.2)
    body = json.dumps(STREAMED).encode()
    head_lines = f"POST {WHERE} HTTP/1.1\r\nHost: here\r\nContent-Length: {len(body)}\r\n\r\n"
    async with head_of(tracker, heads.floods) as head, asyncio.timeout(20):
        with connected(tracker.url) as client:
            client.sendall(head_lines.encode() + body)
            await head.cancelled.wait()


async def test_many_streams_run_at_once(tracker: RunningTracker) -> None:
    async with (
        head_of(tracker, heads.lives_after(0)) as head,
        asyncio.timeout(20),
        asyncio.TaskGroup() as tasks,
    ):
        replies = [tasks.create_task(tracker.post(WHERE, STREAMED)) for _ in range(120)]
        await until(lambda: len(head.bodies) == 120)
        head.go_on.set()
    assert {reply.result().body for reply in replies} == {STREAM}


async def test_a_chat_goes_back_to_the_same_head(tracker: RunningTracker) -> None:
    async with (
        running_head(heads.streams) as one,
        running_head(heads.streams) as two,
        running_head(heads.streams) as three,
    ):
        for name, head in (("w1", one), ("w2", two), ("w3", three)):
            await tracker.serve(name, head.url, shard(0, 6))
        for number in range(12):
            first = [{"role": "user", "content": f"Question {number}"}]
            answered = [*first, {"role": "assistant", "content": "So."}]
            more = [*answered, {"role": "user", "content": "And?"}]
            before = [len(head.bodies) for head in (one, two, three)]
            for messages in (first, more):
                reply = await tracker.post(WHERE, {**CHAT, "messages": messages})
                assert reply.status == 200
            after = [len(head.bodies) for head in (one, two, three)]
            assert sorted(b - a for a, b in zip(before, after, strict=True)) == [0, 0, 2]
    assert all(len(head.bodies) > 0 for head in (one, two, three))


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("url_path", COMPLETIONS.url_paths)
async def test_a_completion_is_asked_for_where_completions_are(
    tracker: RunningTracker, url_path: str, stream: bool
) -> None:
    body = {"model": "tiny", "prompt": ["Once", "Then"], "stream": stream}
    async with head_of(tracker, heads.streams) as head:
        reply = await tracker.post(url_path, body)
    assert (reply.status, reply.body) == (200, STREAM if stream else heads.WHOLE)
    assert head.url_paths == [COMPLETIONS.url_path]
