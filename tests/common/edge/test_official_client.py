"""The official `openai` client against a small server made of our schema and edge."""

from collections.abc import AsyncIterator, Iterator

import openai
import pytest
from aiohttp import web

from meshnet_common.edge.http import (
    json_response,
    new_application,
    open_event_stream,
    read_json_body,
)
from meshnet_common.edge.serving import listening
from meshnet_common.openai import sse
from meshnet_common.openai.chat_writer import ChatWriter
from meshnet_common.openai.errors import (
    insufficient_balance,
    model_not_found,
    model_unavailable,
    worker_lost,
)
from meshnet_common.openai.pieces import FinishReason, TextPiece, WholeChoice
from meshnet_common.openai.requests import ChatRequest, parse_chat_request
from meshnet_common.openai.responses import ListedModel, model_list
from meshnet_common.openai.stream_endings import DoneEnding
from meshnet_common.openai.writer import AnswerIdentity, Usage

PIECES = ("The capital", " of France", " is Pâris 😀.")
REFUSALS = {
    "unknown": model_not_found("unknown"),
    "uncovered": model_unavailable("Layers [10, 20) of `uncovered` have no Worker.", 1),
    "unpaid": insufficient_balance("The account is empty."),
}


class Server:
    """Echoes fixed text; the model's name decides what goes wrong."""

    def __init__(self) -> None:
        self.calls = 0

    def application(self) -> web.Application:
        app = new_application()
        app.router.add_post("/v1/chat/completions", self.chat)
        app.router.add_get("/v1/models", self.models)
        return app

    async def models(self, _request: web.Request) -> web.Response:
        return json_response(model_list([ListedModel(id="smol", created=1, max_model_len=8192)]))

    async def chat(self, request: web.Request) -> web.StreamResponse:
        self.calls += 1
        asked = parse_chat_request(await read_json_body(request))
        if refusal := REFUSALS.get(asked.model):
            raise refusal
        identity = AnswerIdentity("chatcmpl-1", 1, asked.model, "fp_1")
        usage = Usage.of(5, len(PIECES))
        if not asked.stream:
            texts = tuple(map(TextPiece, PIECES))
            choice = WholeChoice(0, texts, FinishReason.STOP)
            return json_response(ChatWriter(identity).whole([choice], usage))
        response = await open_event_stream(request)
        for piece in self._stream(asked, identity, usage):
            await response.write(piece)
        await response.write_eof()
        return response

    def _stream(
        self, asked: ChatRequest, identity: AnswerIdentity, usage: Usage
    ) -> Iterator[bytes]:
        chunks = ChatWriter(identity, asked.include_usage)
        yield sse.comment("accepted; queued position 0")
        yield from map(sse.data_event, chunks.begin(0))
        for piece in PIECES:
            yield sse.KEEP_ALIVE_COMMENT
            for payload in chunks.pieces(0, [TextPiece(piece)]):
                yield sse.data_event(payload)
            if asked.model == "fragile":
                lost = worker_lost("The Head Worker was lost.")
                yield DoneEnding().failed(lost.to_json(), 1)
                return
        yield from map(sse.data_event, chunks.finish(0, FinishReason.STOP))
        if asked.include_usage:
            yield from map(sse.data_event, chunks.usage(usage))
        yield sse.DONE_EVENT


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
async def client(server: Server) -> AsyncIterator[openai.AsyncOpenAI]:
    async with (
        listening(server.application(), "127.0.0.1", 0) as url,
        openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=1) as client,
    ):
        yield client


async def ask(client: openai.AsyncOpenAI, model: str) -> str:
    answer = await client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": "The capital of France?"}]
    )
    return answer.choices[0].message.content or ""


async def test_a_whole_answer_is_read(client: openai.AsyncOpenAI) -> None:
    assert await ask(client, "smol") == "".join(PIECES)


async def test_a_stream_with_comments_and_usage_is_read(client: openai.AsyncOpenAI) -> None:
    stream = await client.chat.completions.create(
        model="smol",
        messages=[{"role": "user", "content": "The capital of France?"}],
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = [chunk async for chunk in stream]

    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == "".join(PIECES)
    assert [chunk.usage.total_tokens for chunk in chunks if chunk.usage] == [8]
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "stop"


async def test_the_stream_helper_accumulates_the_whole_answer(client: openai.AsyncOpenAI) -> None:
    async with client.chat.completions.stream(
        model="smol", messages=[{"role": "user", "content": "The capital of France?"}]
    ) as stream:
        final = await stream.get_final_completion()

    assert final.choices[0].message.content == "".join(PIECES)


async def test_models_are_listed(client: openai.AsyncOpenAI) -> None:
    assert [model.id async for model in client.models.list()] == ["smol"]


async def test_an_unknown_model_is_not_found_and_has_a_request_id(
    client: openai.AsyncOpenAI,
) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        await ask(client, "unknown")

    assert (caught.value.code, caught.value.param) == ("model_not_found", "model")
    assert caught.value.request_id


async def test_a_fault_of_the_request_is_named(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        await client.chat.completions.create(model="smol", messages=[], temperature=1.5)

    assert caught.value.param == "messages"


async def test_a_model_without_coverage_is_asked_again(
    client: openai.AsyncOpenAI, server: Server
) -> None:
    with pytest.raises(openai.InternalServerError) as caught:
        await ask(client, "uncovered")

    assert caught.value.status_code == 503
    assert "[10, 20)" in caught.value.message
    assert server.calls == 2


async def test_an_empty_account_is_not_asked_again(
    client: openai.AsyncOpenAI, server: Server
) -> None:
    with pytest.raises(openai.RateLimitError):
        await ask(client, "unpaid")

    assert server.calls == 1


async def test_a_worker_lost_in_mid_answer_raises(client: openai.AsyncOpenAI) -> None:
    stream = await client.chat.completions.create(
        model="fragile", messages=[{"role": "user", "content": "x"}], stream=True
    )
    with pytest.raises(openai.APIError, match="Head Worker was lost"):
        async for _ in stream:
            pass
