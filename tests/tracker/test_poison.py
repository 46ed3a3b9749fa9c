"""Requests that end whoever works on them, and those that only look like it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from meshnet_common.ids import WorkerId
from meshnet_tracker.quarantine import QUARANTINE_SECONDS
from tests.tracker import heads
from tests.tracker.builders import NOW, shard
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
from tests.tracker.embedders import ANSWER, BODY, Embedder, embedding, encoder
from tests.tracker.embedders import WHERE as EMBEDDINGS
from tests.tracker.falling_heads import (
    blames_the_request,
    falls_over,
    in_line_until_it_dies,
    loses_its_engine_after,
)
from tests.tracker.heads import STREAM, FakeHead
from tests.tracker.running import CHAT, Reply, RunningTracker, until

COUNTING = f"{WHERE}/input_tokens"


@pytest.fixture
async def tracker(tmp_path: Path) -> AsyncIterator[RunningTracker]:
    async with tracker_with(tmp_path, replace(QUICK, hold_seconds=2.0)) as running:
        await running.store.add_preset(encoder(), NOW)
        yield running


@pytest.fixture(autouse=True)
def silence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meshnet_tracker.head_call.SILENCE_SECONDS", 1.0)


def is_blamed(reply: Reply) -> bool:
    assert (reply.status, reply.error["code"]) == (502, "upstream_failed"), reply.body
    assert int(reply.headers["Retry-After"]) <= QUARANTINE_SECONDS
    return reply.headers["x-should-retry"] == "false"


def times_asked(asked: list[FakeHead]) -> list[int]:
    return [len(head.bodies) for head in asked]


FALLS = {
    "at once": falls_over(heads.dies_before_it_answers),
    "after its name": falls_over(heads.dies_after(1)),
    "and never answers": falls_over(heads.hangs_before_it_answers),
    "and says nothing more": falls_over(heads.hangs_after(1)),
    "with its engine": heads.at_first(1, loses_its_engine_after(1)),
}


@BOTH
@pytest.mark.parametrize("falls", FALLS.values(), ids=FALLS)
async def test_a_request_that_two_workers_fell_over_is_given_to_no_third(
    tracker: RunningTracker, falls: heads.Behaviour, chat: dict[str, object], answer: bytes
) -> None:
    async with serving(tracker, falls, falls, heads.streams) as asked:
        assert is_blamed(await tracker.post(WHERE, chat))
        assert times_asked(asked) == [1, 1, 0]
        # The same in other words, for which nobody is asked.
        for same in ({**CHAT, "user": "me", "stream": False}, {**STREAMED, "temperature": 1}):
            assert is_blamed(await tracker.post(WHERE, dict(reversed(same.items()))))
        assert times_asked(asked) == [1, 1, 0]
        other = {**chat, "max_tokens": 7}
        assert (await tracker.post(WHERE, other)).body == answer
        tracker.clock.advance(QUARANTINE_SECONDS)
        assert (await tracker.post(WHERE, chat)).body == answer
        assert sum(times_asked(asked)) == 4


@BOTH
async def test_head_workers_that_saw_engines_fall_are_believed_once_two_say_so(
    tracker: RunningTracker, chat: dict[str, object], answer: bytes
) -> None:
    blames = blames_the_request
    async with serving(tracker, blames, blames, heads.streams) as asked:
        for _ in range(2):
            assert is_blamed(await tracker.post(WHERE, chat))
        assert times_asked(asked) == [1, 1, 0]
    async with serving(tracker, blames, heads.streams):
        other = {**chat, "max_tokens": 7}
        assert (await tracker.post(WHERE, other)).body == answer


async def test_one_that_falls_in_the_middle_is_told_in_the_stream(tracker: RunningTracker) -> None:
    falls = falls_over(heads.dies_after(4)), falls_over(heads.dies_after(1))
    async with serving(tracker, *falls, heads.streams) as asked:
        reply = await tracker.post(WHERE, STREAMED)
        assert (reply.status, error_in(reply)["code"]) == (200, "worker_lost")
        assert times_asked(asked) == [1, 1, 0]
        assert is_blamed(await tracker.post(WHERE, STREAMED))


GOES_ON = {
    "leave": heads.moves_after(1),
    "are full": heads.is_overloaded,
    "drain": heads.is_not_ready,
    "break off but live": heads.dies_after(1),
    "are lost while it is in line": falls_over(in_line_until_it_dies(3)),
}


@BOTH
@pytest.mark.parametrize("behaviour", GOES_ON.values(), ids=GOES_ON)
async def test_an_honest_request_goes_on_when_others(
    tracker: RunningTracker, behaviour: heads.Behaviour, chat: dict[str, object], answer: bytes
) -> None:
    async with serving(tracker, behaviour, behaviour, heads.streams) as asked:
        reply = await tracker.post(WHERE, chat)
        assert (reply.status, reply.body) == (200, answer)
        assert times_asked(asked) == [1, 1, 1]


async def test_an_answer_that_grows_between_losses_blames_nobody(tracker: RunningTracker) -> None:
    falls = [falls_over(heads.dies_after(blocks)) for blocks in (3, 3, 2)]
    async with serving(tracker, *falls, heads.streams):
        reply = await tracker.post(WHERE, STREAMED)
        assert (reply.status, reply.body) == (200, STREAM)


async def test_who_was_never_reached_fell_over_nothing(tracker: RunningTracker) -> None:
    for number in range(3):
        await tracker.serve(f"a{number}", unused_url(), shard(0, 6))
    async with serving(tracker, heads.streams):
        reply = await tracker.post(WHERE, STREAMED)
        assert (reply.status, reply.body) == (200, STREAM)


async def test_a_client_that_hangs_up_blames_nobody(tracker: RunningTracker) -> None:
    async with serving(tracker, heads.lives_after(1), heads.lives_after(1)) as asked:
        async with asyncio.TaskGroup() as clients:
            leaving = [clients.create_task(tracker.post(WHERE, CHAT)) for _ in range(3)]
            await until(lambda: sum(times_asked(asked)) == len(leaving))
            for client in leaving:
                client.cancel()
        await until(lambda: any(head.cancelled.is_set() for head in asked))
        assert len(tracker.services.quarantine) == 0


async def test_one_loss_and_a_restart_blame_nobody(tracker: RunningTracker) -> None:
    falls = heads.at_first(1, falls_over(heads.dies_after(1)))
    async with serving(tracker, falls) as (head,):
        async with asyncio.TaskGroup() as clients:
            reply = clients.create_task(tracker.post(WHERE, STREAMED))
            await until(lambda: not head.is_well)
            head.is_well = True
            await tracker.serve("w9", head.url, shard(0, 6))
        assert reply.result().body == STREAM


@asynccontextmanager
async def embedders(tracker: RunningTracker) -> AsyncIterator[list[Embedder]]:
    """Two that fall over what they are asked, and then one that does not."""
    running = [Embedder(0), Embedder(0)]
    for one in running:
        one.is_well = False
    async with embedding(tracker, *running):
        yield running


async def test_inputs_that_two_workers_fell_over_are_given_to_no_third(
    tracker: RunningTracker,
) -> None:
    async with embedders(tracker) as running:
        assert is_blamed(await tracker.post(EMBEDDINGS, BODY))
        assert [len(one.bodies) for one in running] == [1, 1]
        well = Embedder()
        async with embedding(tracker, well, first=2):
            assert is_blamed(await tracker.post(EMBEDDINGS, {**BODY, "user": "me"}))
            assert well.bodies == []
            other = await tracker.post(EMBEDDINGS, {**BODY, "input": "c"})
            assert (other.status, other.json) == (200, ANSWER)


async def test_a_prompt_whose_count_two_workers_fell_over_is_answered_by_no_third(
    tracker: RunningTracker,
) -> None:
    falls = falls_over(heads.dies_before_it_answers)
    async with serving(tracker, falls, falls, heads.streams) as asked:
        assert is_blamed(await tracker.post(COUNTING, CHAT))
        assert is_blamed(await tracker.post(WHERE, STREAMED))
        assert times_asked(asked) == [1, 1, 0]


async def test_what_is_blamed_for_one_worker_is_not_for_all(tracker: RunningTracker) -> None:
    async with serving(tracker, falls_over(heads.dies_after(1)), heads.streams):
        for _ in range(2):
            assert (await tracker.post(WHERE, STREAMED)).body == STREAM
    assert WorkerId("w0") not in {
        worker.worker_id for worker in (await tracker.services.view.snapshot()).workers
    }
