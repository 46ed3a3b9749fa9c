import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import msgspec
import pytest

from meshnet_common.openai.messages import ChatMessage
from meshnet_common.openai.sse import DONE_EVENT
from meshnet_common.openai.tools import NO_TOOLS, ToolUse
from meshnet_common.protocol.notes import Sent
from meshnet_common.protocol.resume import (
    RESUME_HEADER,
    TOKEN_IDS_HEADER,
    Block,
    ChoiceRecord,
    HeadStream,
    ResumeRecord,
    encode_resume,
)
from meshnet_common.protocol.tickets import TICKET_HEADER
from meshnet_worker.text.detokenizer import Detokenizer
from meshnet_worker.text.tokenizer import TextCodec
from tests.common.builders import ticket, token_of
from tests.worker.answers.scripts import delivered
from tests.worker.chatting import CONTEXT_TOKENS, Client, Serve
from tests.worker.waiting import SECONDS

ALIVE = b": alive\n\n"
MOVED = b": moved\n\n"


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Signs of life come quickly."""
    monkeypatch.setattr("meshnet_worker.head_tokens.SIGN_SECONDS", 0.01)
    monkeypatch.setattr("meshnet_worker.answers.telling.ALIVE_SECONDS", 0.01)


def body(content: str = "w5 w6 w7", **fields: Any) -> bytes:
    messages = [{"role": "user", "content": content}]
    return msgspec.json.encode({"model": "tiny", "messages": messages, "stream": True, **fields})


def headers(record: ResumeRecord | None, incarnation: int = 1) -> dict[str, str]:
    token = token_of(ticket(incarnation=incarnation))
    resume = {} if record is None else {RESUME_HEADER: "1"}
    return {TICKET_HEADER: token, TOKEN_IDS_HEADER: "1", **resume}


async def told(
    client: Client, request: bytes, record: ResumeRecord | None = None, incarnation: int = 1
) -> bytes:
    """All that the Head Worker tells of an answer, from its beginning or behind a record."""
    sent = request if record is None else encode_resume(request, record)
    answer = await client.post(sent, headers(record, incarnation))
    assert answer.status == 200, answer.body
    return answer.body


@asynccontextmanager
async def listening_to(client: Client, request: bytes) -> AsyncIterator[aiohttp.StreamReader]:
    """An answer that is read as it comes."""
    every = {"Content-Type": "application/json", **headers(None)}
    async with (
        asyncio.timeout(SECONDS),
        aiohttp.ClientSession() as session,
        session.post(client.url, data=request, headers=every) as response,
    ):
        yield response.content


async def read_until(stream: aiohttp.StreamReader, end: bytes) -> bytes:
    data = b""
    while not data.endswith(end):
        data += await stream.readuntil(b"\n")
    return data


def record_of(*token_ids: int, sent: Sequence[Sent] = (Sent.ROLE,)) -> ResumeRecord:
    choice = ChoiceRecord(token_ids=token_ids, sent=tuple(sent))
    return ResumeRecord(id="chatcmpl-s1", created=1_000_000, choices=(choice,))


def blocks_of(stream: bytes) -> list[Block]:
    return list(HeadStream().feed(stream))


async def test_an_answer_begins_with_its_name(serve: Serve) -> None:
    async with serve(1, 2) as client:
        first, *_, last = blocks_of(await told(client, body(max_tokens=2)))
        assert first.answer == ("chatcmpl-s1", 1_000_000)
        assert last.ends_stream
        assert client.route.is_closed


REQUESTS = {
    "a stream": body(max_tokens=4),
    "a stream with usage": body(max_tokens=4, stream_options={"include_usage": True}),
    "a stream with a stop string": body(max_tokens=4, stop=["w3 w9", "w4 w9"]),
    "a stream to a stop string": body(stop=["w4"]),
    "a whole answer": body(max_tokens=4, stream=False),
}


@pytest.mark.parametrize("request_body", REQUESTS.values(), ids=REQUESTS)
async def test_another_head_worker_goes_on_where_the_first_was_cut(
    request_body: bytes, serve: Serve
) -> None:
    async with serve(1, 2, 3, 4) as client:
        stream = await told(client, request_body)
    whole, _ = delivered(stream)
    for cut in range(len(stream) // 7, len(stream) - len(DONE_EVENT), len(stream) // 7):
        got, reader = delivered(stream[:cut])
        if (record := reader.record) is None:
            continue
        missing = (1, 2, 3, 4)[len(record.choices[0].token_ids) :]
        async with serve(*missing) as client:
            rest = await told(client, request_body, record, incarnation=2)
        assert got + delivered(rest, record)[0] == whole


async def test_what_was_chosen_goes_out_again_with_the_prompt(serve: Serve) -> None:
    async with serve(3) as client:
        request = body(max_tokens=3, stream_options={"include_usage": True})
        data, _ = delivered(await told(client, request, record_of(1, 2), incarnation=2))
        assert client.route.prompt_ids == [5, 6, 7, 1, 2]
        usage = msgspec.json.decode(data.split(b"\n\n")[-3].removeprefix(b"data: "))["usage"]
        assert (usage["prompt_tokens"], usage["completion_tokens"]) == (3, 3)


async def test_an_answer_without_missing_tokens_opens_no_session(serve: Serve) -> None:
    async with serve() as client:
        data, _ = delivered(await told(client, body(max_tokens=2), record_of(1, 2)))
        assert b'"finish_reason":"length"' in data
        assert client.route.sent == []


async def test_a_record_that_contradicts_the_request_is_a_400(serve: Serve) -> None:
    async with serve() as client:
        stream = await told(client, body(max_tokens=2), record_of(1, 2, 3))
        failure = blocks_of(stream)[-2].failure
        assert failure is not None
        assert failure.status == 400
        assert client.route.sent == []


@pytest.mark.parametrize("junk", [b"{}", b'{"request": {}, "record": 1}', body()])
async def test_a_resumption_that_is_malformed_is_a_400(junk: bytes, serve: Serve) -> None:
    async with serve() as client:
        assert (await client.post(junk, headers(record_of()))).status == 400


async def test_a_prompt_that_is_too_long_is_told_with_its_status(serve: Serve) -> None:
    async with serve() as client:
        failed, done = blocks_of(await told(client, body("w1 " * CONTEXT_TOKENS)))
        assert failed.failure is not None
        assert failed.failure.status == 400
        assert b"context_length_exceeded" in (failed.payload or b"")
        assert done.ends_stream


@pytest.mark.parametrize("stream", [True, False])
async def test_a_route_that_fails_is_told_with_its_status(stream: bool, serve: Serve) -> None:
    async with serve() as client:
        client.route.refuses_with = "kv_exhausted"
        *_, failed, _ = blocks_of(await told(client, body(stream=stream)))
        assert failed.failure is not None
        assert (failed.failure.status, failed.failure.retry_after) == (503, "5")


@pytest.mark.usefixtures("impatient")
async def test_an_answer_that_waits_shows_signs_of_life(serve: Serve) -> None:
    async with serve(wait_seconds=60) as client:
        client.route.refuses_with = "kv_exhausted"
        async with listening_to(client, body()) as stream:
            assert (await read_until(stream, ALIVE * 2)).endswith(ALIVE * 2)


class SlowCodec:
    """Reads no prompt before it may."""

    def __init__(self, codec: TextCodec) -> None:
        self._codec = codec
        self.may_read = threading.Event()
        self.eos_ids = codec.eos_ids

    def chat_text(self, messages: Sequence[ChatMessage], use: ToolUse = NO_TOOLS) -> str:
        return self._codec.chat_text(messages, use)

    def chat_ids(self, text: str) -> list[int]:
        assert self.may_read.wait(SECONDS)
        return self._codec.chat_ids(text)

    def detokenizer(self) -> Detokenizer:
        return self._codec.detokenizer()


@pytest.mark.usefixtures("impatient")
async def test_signs_of_life_come_while_the_prompt_is_read(serve: Serve, codec: TextCodec) -> None:
    slow: Any = SlowCodec(codec)
    async with serve(1) as client:
        client.codecs[("tiny", "float32")] = slow
        async with listening_to(client, body(max_tokens=1)) as stream:
            await read_until(stream, ALIVE * 2)
            slow.may_read.set()
            await read_until(stream, DONE_EVENT)


@pytest.mark.usefixtures("impatient")
async def test_an_answer_moves_away_at_its_next_sign_of_life(serve: Serve) -> None:
    async with serve(1) as client, listening_to(client, body()) as stream:
        told_first = await read_until(stream, b"}\n\n" + ALIVE)
        client.head.move_away()
        client.head.move_away()
        rest = await stream.read()
        assert rest.endswith(MOVED)
        _, reader = delivered(told_first + rest)
        assert reader.record == record_of(1)
        await client.route.changes.until(lambda: client.route.let_go_of)
        # What the other Hops hold is for the next Head Worker.
        assert not client.route.is_closed


async def test_all_choices_move_away_together(serve: Serve) -> None:
    two = body(n=2, temperature=1)
    async with serve(1) as client, listening_to(client, two) as stream:
        client.route.others = [[2]]
        told_first = await read_until(stream, b": token-ids 2\n")
        client.head.move_away()
        rest = await stream.read()
        assert rest.endswith(MOVED)
        _, reader = delivered(told_first + rest)
        assert reader.record is not None
        assert [choice.token_ids for choice in reader.record.choices] == [(1,), (2,)]
        await client.route.changes.until(lambda: len(client.route.let_go_of) == 2)
        assert not client.route.is_closed


async def test_another_head_worker_goes_on_with_the_choices_that_are_not_over(
    serve: Serve,
) -> None:
    choices = (
        ChoiceRecord(token_ids=(1, 2), sent=(Sent.ROLE, Sent.FINISH)),
        ChoiceRecord(index=1, token_ids=(3,), sent=(Sent.ROLE,)),
        ChoiceRecord(index=2),
    )
    record = ResumeRecord(id="chatcmpl-s1", created=1_000_000, choices=choices)
    async with serve() as client:
        client.route.others = [[4], [5, 6]]
        request = body(n=3, temperature=1, max_tokens=2)
        data, reader = delivered(await told(client, request, record, incarnation=2), record)
        assert client.route.closed == {"s1.1", "s1.2"}
        assert reader.record is not None
        assert [choice.token_ids for choice in reader.record.choices] == [(1, 2), (3, 4), (5, 6)]
        assert (data.count(b'"role"'), data.count(b'"finish_reason":"length"')) == (1, 2)


async def test_a_worker_that_leaves_begins_no_answer(serve: Serve) -> None:
    async with serve(1) as client:
        client.recording.shards.leaving = True
        answer = await client.post(body(), headers(None))
        assert (answer.status, answer.code) == (503, "draining")
        assert client.route.sent == []


async def test_a_session_that_comes_again_replaces_the_one_before(serve: Serve) -> None:
    async with serve(1) as client, listening_to(client, body(max_tokens=2)) as stream:
        await read_until(stream, b'"w1"},"logprobs":null,"finish_reason":null}]}\n\n')
        client.route.tokens = [2]
        data, _ = delivered(await told(client, body(max_tokens=2), record_of(1), incarnation=2))
        assert b'" w2"' in data
        with pytest.raises(aiohttp.ClientError):
            await stream.read()


async def test_the_same_ticket_twice_is_refused_in_the_stream(serve: Serve) -> None:
    async with serve(1) as client, listening_to(client, body(max_tokens=2)) as stream:
        await read_until(stream, b"}\n\n")
        *_, failed, _ = blocks_of(await told(client, body()))
        assert failed.failure is not None
        assert failed.failure.status == 403
