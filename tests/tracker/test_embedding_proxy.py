from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from aiohttp import web

from meshnet_common.presets import ModelPreset
from meshnet_tracker.planning.snapshot import VariantKey
from meshnet_tracker.records import PresetRecord
from tests.tracker import heads
from tests.tracker.builders import NOW, preset, shard
from tests.tracker.deliveries import QUICK, serving, tracker_with, unused_url
from tests.tracker.running import CHAT, RunningTracker
from tests.tracker.served import served

WHERE = "/v1/embeddings"
BODY = {"model": "embedder", "input": ["a", "b"]}
ANSWER = {"object": "list", "data": []}
KEY = VariantKey("embedder", "bfloat16")


class Embedder:
    """A small server that plays the part of a Worker with an encoder."""

    def __init__(self, *statuses: int) -> None:
        self.bodies: list[bytes] = []
        self.tickets: list[str] = []
        self._statuses = list(statuses)

    async def embed(self, request: web.Request) -> web.Response:
        self.bodies.append(await request.read())
        self.tickets.append(request.headers["x-meshnet-ticket"])
        assert "Authorization" not in request.headers
        status = self._statuses.pop(0) if self._statuses else 200
        if status == 0:
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        error = {"message": "No.", "type": "server_error", "param": None, "code": "draining"}
        return web.json_response(ANSWER if status == 200 else {"error": error}, status=status)


def encoder() -> PresetRecord:
    record = preset("embedder", layers=1)
    model: ModelPreset = msgspec.structs.replace(record.preset, architecture="BertModel")
    return replace(record, preset=model)


@pytest.fixture
async def tracker(tmp_path: Path) -> AsyncIterator[RunningTracker]:
    """A Tracker that knows an encoder and a chat model."""
    async with tracker_with(tmp_path, replace(QUICK, hold_seconds=1.0)) as running:
        await running.store.add_preset(encoder(), NOW)
        yield running


@asynccontextmanager
async def embedding(tracker: RunningTracker, *embedders: Embedder) -> AsyncIterator[None]:
    async with AsyncExitStack() as stack:
        for number, embedder in enumerate(embedders):
            app = web.Application()
            app.router.add_post(WHERE, embedder.embed)
            url = await stack.enter_async_context(served(app))
            await tracker.serve(f"e{number}", url, shard(0, 1, model=KEY))
        yield


async def test_a_worker_with_the_encoder_gets_the_body_as_it_came(tracker: RunningTracker) -> None:
    embedder = Embedder()
    async with embedding(tracker, embedder):
        reply = await tracker.post(WHERE, BODY, "sk-secret")
        assert (reply.status, reply.json) == (200, ANSWER)
        assert (await tracker.post("/embeddings", BODY)).status == 200
    assert embedder.bodies == [msgspec.json.encode(BODY)] * 2
    ticket = await tracker.services.signer.verify(embedder.tickets[0])
    assert [hop.worker_id for hop in ticket.hops] == ["e0"]


@pytest.mark.parametrize("status", [0, 502, 503], ids=["hangs up", "502", "503"])
async def test_another_worker_is_asked_when_one_cannot(
    tracker: RunningTracker, status: int
) -> None:
    one, other = Embedder(status), Embedder(status)
    async with embedding(tracker, one, other):
        reply = await tracker.post(WHERE, BODY)
        assert (reply.status, reply.json) == (200, ANSWER)
    assert len(one.bodies) + len(other.bodies) > 1


async def test_a_refusal_that_is_the_requests_own_fault_is_passed_on(
    tracker: RunningTracker,
) -> None:
    embedder = Embedder(400)
    async with embedding(tracker, embedder, Embedder(400)):
        reply = await tracker.post(WHERE, BODY)
        assert (reply.status, reply.error["code"]) == (400, "draining")
    assert len(embedder.bodies) <= 1


async def test_when_all_refuse_the_last_word_is_theirs(tracker: RunningTracker) -> None:
    async with embedding(tracker, Embedder(*[503] * 100)):
        reply = await tracker.post(WHERE, BODY)
        assert (reply.status, reply.error["code"]) == (503, "draining")


async def test_when_nobody_can_be_reached_it_is_a_502(tracker: RunningTracker) -> None:
    await tracker.serve("e1", unused_url(), shard(0, 1, model=KEY))
    reply = await tracker.post(WHERE, BODY)
    assert (reply.status, reply.error["code"]) == (502, "upstream_failed")


async def test_an_encoder_that_nobody_holds_is_unavailable(tracker: RunningTracker) -> None:
    reply = await tracker.post(WHERE, BODY)
    assert (reply.status, reply.error["code"]) == (503, "model_unavailable")
    assert "Retry-After" in reply.headers


@pytest.mark.parametrize(
    ("fields", "status", "param"),
    [
        ({"model": "tiny"}, 400, "model"),
        ({"model": "nothing"}, 404, "model"),
        ({"input": []}, 400, "input"),
        ({"encoding_format": "hex"}, 400, "encoding_format"),
    ],
)
async def test_what_is_no_request_reaches_no_worker(
    tracker: RunningTracker, fields: dict[str, object], status: int, param: str
) -> None:
    embedder = Embedder()
    async with embedding(tracker, embedder), serving(tracker, heads.streams):
        reply = await tracker.post(WHERE, {**BODY, **fields})
        assert (reply.status, reply.error["param"]) == (status, param)
    assert embedder.bodies == []


async def test_an_encoder_answers_no_chat(tracker: RunningTracker) -> None:
    async with embedding(tracker, Embedder()):
        reply = await tracker.post("/v1/chat/completions", {**CHAT, "model": "embedder"})
        assert (reply.status, reply.error["param"]) == (400, "model")
