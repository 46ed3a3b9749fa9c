"""What a Tracker is told of an answer with which engines were lost."""

import pytest

from tests.worker.answers.test_telling import (
    ALIVE,
    MOVED,
    blocks_of,
    body,
    listening_to,
    read_until,
)
from tests.worker.chatting import Serve

FELLED = b": moved\n: felled\n\n"


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Signs of life come quickly."""
    monkeypatch.setattr("meshnet_worker.head_tokens.SIGN_SECONDS", 0.01)
    monkeypatch.setattr("meshnet_worker.answers.telling.ALIVE_SECONDS", 0.01)


async def test_an_answer_that_moves_since_the_engine_here_was_lost_says_so(serve: Serve) -> None:
    for worker_id, last in (("w0", FELLED), ("w1", MOVED)):
        async with serve(1) as client, listening_to(client, body()) as stream:
            await read_until(stream, b"}\n\n" + ALIVE)
            client.route.fail("engine_lost", worker_id)
            client.head.move_away()
            assert (await stream.read()).endswith(b"\n\n" + last)


async def test_an_answer_that_fails_wherever_it_runs_is_told_to_be_to_blame(serve: Serve) -> None:
    async with serve(1) as client, listening_to(client, body()) as stream:
        told_first = await read_until(stream, b"}\n\n" + ALIVE)
        for openings, worker_id in ((1, "w1"), (2, "w0")):
            await client.route.changes.until(lambda: len(client.route.samplings) == openings)  # noqa: B023
            client.route.fail("engine_failed", worker_id)
        *_, failed, _ = blocks_of(told_first + await stream.read())
        assert failed.is_blamed
        assert failed.failure is not None
        assert failed.failure.status == 502
