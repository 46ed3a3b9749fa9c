from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.tracker.builders import NOW, shard
from tests.tracker.deliveries import QUICK, tracker_with, unused_url
from tests.tracker.embedders import ANSWER, BODY, HANGS, KEY, WHERE, Embedder, embedding, encoder
from tests.tracker.running import RunningTracker


@pytest.fixture
async def tracker(tmp_path: Path) -> AsyncIterator[RunningTracker]:
    """A Tracker that knows an encoder and a chat model."""
    async with tracker_with(tmp_path, replace(QUICK, hold_seconds=1.0)) as running:
        await running.store.add_preset(encoder(), NOW)
        yield running


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


async def test_what_takes_a_worker_too_long_is_asked_of_no_other(
    tracker: RunningTracker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("meshnet_tracker.whole_delivery.ANSWER_SECONDS", 0.5)
    slow = [Embedder(HANGS), Embedder(HANGS)]
    async with embedding(tracker, *slow):
        reply = await tracker.post(WHERE, BODY)
        assert (reply.status, reply.error["code"]) == (504, "deadline_exceeded")
        assert reply.headers["x-should-retry"] == "false"
    assert sum(len(one.bodies) for one in slow) == 1


async def test_another_one_is_asked_where_a_worker_hangs(
    tracker: RunningTracker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("meshnet_tracker.whole_delivery.ANSWER_SECONDS", 0.5)
    hangs = Embedder(HANGS)
    hangs.is_well = False
    async with embedding(tracker, hangs, Embedder()):
        for _ in range(3):
            reply = await tracker.post(WHERE, BODY)
            assert (reply.status, reply.json) == (200, ANSWER)
    assert len(hangs.bodies) <= 1
