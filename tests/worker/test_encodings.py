import asyncio
from array import array

import pytest

from meshnet_common.errors import MeshnetError
from meshnet_worker.encodings import EncodeFailedError, Encodings
from meshnet_worker.engine_port import Command, DropTexts, EncodeTexts
from tests.worker.waiting import Changes

TEXTS = ((5, 6), (7,))


class EngineGoneError(MeshnetError):
    """It has ended."""


class Engine:
    """Hears what is sent to an engine, until it is lost."""

    def __init__(self) -> None:
        self.heard: list[Command] = []
        self.payloads: list[bytes] = []
        self.is_lost = False
        self.changes = Changes()
        self.encodings = Encodings(self.send)

    def send(self, command: Command, payload: bytes) -> None:
        if self.is_lost:
            raise EngineGoneError
        self.heard.append(command)
        self.payloads.append(payload)
        self.changes.tell()


@pytest.fixture
def engine() -> Engine:
    return Engine()


async def asked(engine: Engine) -> "asyncio.Task[bytes]":
    """Ask for vectors, and return once the engine has heard of it."""
    before = len(engine.heard)
    task = asyncio.get_running_loop().create_task(engine.encodings.encode(3, TEXTS))
    await engine.changes.until(lambda: len(engine.heard) > before)
    return task


async def test_texts_go_out_as_one_and_their_vectors_come_back(engine: Engine) -> None:
    task = await asked(engine)
    assert engine.heard == [EncodeTexts(0, 3, (2, 1))]
    assert engine.payloads == [array("i", [5, 6, 7]).tobytes()]
    engine.encodings.encoded(0, b"vectors")
    assert await task == b"vectors"


async def test_who_asked_gets_its_own_answer_in_any_order(engine: Engine) -> None:
    first, second, third = [await asked(engine) for _ in range(3)]
    engine.encodings.encoded(2, b"third")
    engine.encodings.failed(1, "Because.")
    engine.encodings.encoded(0, b"first")
    assert (await first, await third) == (b"first", b"third")
    with pytest.raises(EncodeFailedError, match="Because"):
        await second


async def test_who_leaves_takes_its_texts_out_of_the_engine(engine: Engine) -> None:
    task = await asked(engine)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert engine.heard[-1] == DropTexts(0)
    # They may have been done already.
    engine.encodings.encoded(0, b"too late")


async def test_an_engine_that_is_lost_fails_all_who_wait(engine: Engine) -> None:
    tasks = [await asked(engine) for _ in range(2)]
    engine.is_lost = True
    engine.encodings.lose(EngineGoneError())
    for task in tasks:
        with pytest.raises(EngineGoneError):
            await task
    with pytest.raises(EngineGoneError):
        await engine.encodings.encode(3, TEXTS)


async def test_who_leaves_a_lost_engine_just_leaves(engine: Engine) -> None:
    task = await asked(engine)
    engine.is_lost = True
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
