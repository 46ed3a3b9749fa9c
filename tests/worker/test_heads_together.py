"""Three Workers that are each other's Hops, joined as their daemons join them, with little KV."""

import asyncio
from collections.abc import Sequence

import pytest

from meshnet_common.protocol.tickets import RouteTicket
from meshnet_worker import generation
from meshnet_worker.generation import Generation
from meshnet_worker.tickets import SignedRoute
from tests.common.builders import ticket, token_of
from tests.worker.builders import RecordingRoom
from tests.worker.head_routes import generating
from tests.worker.running import PlayedEngine, RunningWorker, running_workers

SECONDS = 30.0
ANSWERS = 18
POSITIONS = 40
"""Each Layer of each Worker holds so many, which is two answers or three."""


@pytest.fixture(autouse=True)
def short_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Sessions grow every few positions, as long answers do."""
    monkeypatch.setattr(generation, "RESERVE_POSITIONS", 8)
    monkeypatch.setattr(generation, "RESERVE_AHEAD", 4)


def claims_of(workers: Sequence[RunningWorker], number: int) -> RouteTicket:
    """Routes form a ring: each Worker is head, middle and tail of some."""
    first, second, third = (workers[(number + place) % 3] for place in range(3))
    return ticket(
        first.hop(0, 1),
        second.hop(1, 3),
        third.hop(3, 4),
        session_id=f"s{number}",
        admission_seq=number + 1,
    )


async def ask(workers: Sequence[RunningWorker], number: int, leaves_after: int | None) -> None:
    claims = claims_of(workers, number)
    prompt_tokens = 2 + number % 7
    one = Generation(
        session_id=claims.session_id,
        epoch=(1, 0),
        prompt_ids=tuple(range(prompt_tokens)),
        max_new_tokens=20,
        end_ids=frozenset(),
        min_new_tokens=0,
        chunk_tokens=3,
    )
    heads = workers[number % 3].heads
    heard: list[int] = []
    async with generating(heads, SignedRoute(claims, token_of(claims)), one) as tokens:
        async for token in tokens:
            if token is not None:
                heard.append(token)
            if len(heard) == leaves_after:
                return
    assert heard == list(range(prompt_tokens, prompt_tokens + 20))


async def has_settled(worker: RunningWorker) -> None:
    await worker.changes.until(lambda: worker.is_as_before)


async def test_more_answers_than_fit_all_come_whole_and_leave_nothing() -> None:
    rooms = [RecordingRoom(f"w{n}", kv_bytes=40 * POSITIONS, wait_seconds=60) for n in range(3)]
    async with asyncio.timeout(SECONDS), running_workers(*rooms) as workers:
        for worker in workers:
            PlayedEngine(worker)
        async with asyncio.TaskGroup() as tasks:
            for number in range(ANSWERS):
                leaves_after = 5 if number % 6 == 5 else None
                tasks.create_task(ask(workers, number, leaves_after))
        for worker in workers:
            await has_settled(worker)
            assert (worker.heads.waiting, len(worker.heads)) == (0, 0)
        assert sum(worker.hops.preempted for worker in workers) > 0
