from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from tests.tracker import heads
from tests.tracker.builders import NOW
from tests.tracker.deliveries import QUICK, serving, tracker_with
from tests.tracker.embedders import ANSWER, BODY, WHERE, Embedder, embedding, encoder
from tests.tracker.running import CHAT, RunningTracker


@pytest.fixture
async def tracker(tmp_path: Path) -> AsyncIterator[RunningTracker]:
    """A Tracker that knows an encoder and a chat model."""
    async with tracker_with(tmp_path, replace(QUICK, hold_seconds=1.0)) as running:
        await running.store.add_preset(encoder(), NOW)
        yield running


async def test_a_worker_with_the_encoder_gets_the_body_as_it_came(tracker: RunningTracker) -> None:
    embedder = Embedder()
    async with embedding(tracker, embedder):
        reply = await tracker.post(WHERE, BODY, "sk-secret")
        assert (reply.status, reply.json) == (200, ANSWER)
        assert (await tracker.post("/embeddings", BODY)).status == 200
    assert embedder.bodies == [msgspec.json.encode(BODY)] * 2
    ticket = await tracker.services.signer.verify(embedder.tickets[0])
    assert [hop.worker_id for hop in ticket.hops] == ["e0"]


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
