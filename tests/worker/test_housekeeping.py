import asyncio
from contextlib import AsyncExitStack
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import cast

import pytest

from meshnet_common.protocol.bodies import ProgressBody
from meshnet_worker import housekeeping
from meshnet_worker.engine_port import Tune
from meshnet_worker.engine_process import EngineProcess
from meshnet_worker.engine_supervisor import EngineSlot
from meshnet_worker.housekeeping import (
    HANGING_SECONDS,
    LAYER_SECONDS,
    Housekeeper,
    Patience,
    Tuning,
)
from meshnet_worker.slots import HostShare, shared_host
from tests.common.builders import activations, segment
from tests.worker.builders import LEASE_SECONDS, RecordingRoom
from tests.worker.hop_running import MIDDLE, Running
from tests.worker.test_measures import measures as measures_of
from tests.worker.test_measures import options
from tests.worker.waiting import SECONDS, Changes, ending_tasks

OVERDUE = activations(segment(0))


class RecordingEngine:
    """Writes down how it is tuned, and whether it was given up."""

    is_loading = False

    def __init__(self) -> None:
        self.sent: list[object] = []
        self.is_given_up = False

    def send(self, command: object, _payload: bytes) -> None:
        self.sent.append(command)

    def abandon(self) -> None:
        self.is_given_up = True


def slot_of(engine: RecordingEngine) -> EngineSlot:
    slot = EngineSlot()
    slot.put(cast(EngineProcess, engine))
    return slot


class House:
    """A Tail Worker's Hops with one Session, and whoever looks after them."""

    def __init__(self, folder: Path) -> None:
        self.running = Running("w2")
        self.engine = RecordingEngine()
        tuning = Tuning(replace(options(), threads=None), HostShare(folder, cores=8))
        self.keeper = Housekeeper(self.running.hops, slot_of(self.engine), tuning)

    def wait(self, seconds: float) -> None:
        self.running.recording.steady.advance(seconds)

    @property
    def signs(self) -> list[ProgressBody]:
        """The signs that the Head Worker has got of a Session that waits."""
        sent = self.running.recording.bodies_to("w0")
        return [body for body in sent if isinstance(body, ProgressBody) and body.waits]


def test_a_session_that_nobody_feeds_is_freed_after_its_lease(tmp_path: Path) -> None:
    house = House(tmp_path)
    house.wait(LEASE_SECONDS - 1)
    house.keeper.look_after_sessions()
    assert house.running.open_ids == ["s1"]
    house.wait(1)
    house.keeper.look_after_sessions()
    assert house.running.open_ids == []


def test_a_head_worker_hears_that_its_session_waits(tmp_path: Path) -> None:
    house = House(tmp_path)
    house.keeper.look_after_sessions()
    assert house.signs == []
    house.running.hops.run(MIDDLE, activations(segment(0), segment(1)))
    house.wait(2)
    house.running.stepped(None)
    house.keeper.look_after_sessions()
    assert len(house.signs) == 1


def test_an_engine_that_hangs_is_given_up(tmp_path: Path) -> None:
    house = House(tmp_path)
    house.running.hops.run(MIDDLE, OVERDUE)
    house.wait(HANGING_SECONDS)
    house.keeper.look_after_engine()
    assert not house.engine.is_given_up
    house.wait(1)
    house.keeper.look_after_engine()
    assert house.engine.is_given_up


def test_a_batch_waits_for_a_layer_that_is_loaded() -> None:
    room, engine = RecordingRoom(ready=(0, 4)), RecordingEngine()
    measures = measures_of(room)
    patience = Patience(measures, slot_of(engine))
    assert patience.seconds() == measures.slow_batch_seconds()
    engine.is_loading = True
    assert patience.seconds() == measures.slow_batch_seconds() + LAYER_SECONDS
    assert Patience(measures, EngineSlot()).seconds() == measures.slow_batch_seconds()


def test_cores_are_shared_anew_as_workers_come_and_go(tmp_path: Path) -> None:
    house = House(tmp_path)
    house.keeper.share_cores()
    assert house.engine.sent == []
    with shared_host(tmp_path), shared_host(tmp_path):
        for _ in range(2):
            house.keeper.share_cores()
    house.keeper.share_cores()
    threads = [command.threads for command in house.engine.sent if isinstance(command, Tune)]
    assert threads == [4, 8]


def test_cores_that_a_volunteer_has_counted_are_not_shared(tmp_path: Path) -> None:
    tuning = Tuning(replace(options(), threads=3), HostShare(tmp_path, cores=8))
    with shared_host(tmp_path), shared_host(tmp_path):
        assert tuning.tune().threads == 3


async def test_the_house_is_kept_until_the_worker_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(housekeeping, "ROUND_SECONDS", 0.001)
    house = House(tmp_path)
    house.running.hops.run(MIDDLE, OVERDUE)
    house.wait(LEASE_SECONDS - 1)
    changes = Changes()
    monkeypatch.setattr(house.engine, "send", lambda *_: changes.tell())
    async with ending_tasks() as tasks, AsyncExitStack() as workers:
        tasks.create_task(house.keeper.run())
        for _ in range(2):
            workers.enter_context(shared_host(tmp_path))
        await changes.until(lambda: house.engine.is_given_up)


async def test_a_worker_that_slept_itself_does_not_blame_its_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(housekeeping, "ROUND_SECONDS", 0.001)
    monkeypatch.setattr(housekeeping, "LATE_SECONDS", -1.0)
    house = House(tmp_path)
    house.running.hops.run(MIDDLE, OVERDUE)
    house.wait(HANGING_SECONDS + 1)
    rounds, third = count(1), asyncio.Event()

    def look() -> None:
        if next(rounds) == 3:
            third.set()

    monkeypatch.setattr(house.running.hops, "tell_who_waits", look)
    async with ending_tasks() as tasks:
        tasks.create_task(house.keeper.run())
        async with asyncio.timeout(SECONDS):
            await third.wait()
    assert not house.engine.is_given_up
