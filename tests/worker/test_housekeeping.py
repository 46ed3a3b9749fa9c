from dataclasses import replace
from pathlib import Path
from typing import cast

from meshnet_worker.engine_port import Tune
from meshnet_worker.engine_process import EngineProcess
from meshnet_worker.engine_supervisor import EngineSlot
from meshnet_worker.housekeeping import HANGING_SECONDS, Housekeeper, Tuning
from meshnet_worker.slots import HostShare, shared_host
from tests.common.builders import activations, segment
from tests.worker.builders import LEASE_SECONDS
from tests.worker.hop_running import MIDDLE, Running
from tests.worker.test_measures import options

SLOW_BATCH_SECONDS = 5.0


class RecordingEngine:
    """Writes down how it is tuned, and whether it was given up."""

    def __init__(self) -> None:
        self.sent: list[object] = []
        self.is_given_up = False

    def send(self, command: object, _payload: bytes) -> None:
        self.sent.append(command)

    def abandon(self) -> None:
        self.is_given_up = True


class House:
    """A Tail Worker's Hops with one Session, and whoever looks after them."""

    def __init__(self, folder: Path) -> None:
        self.running = Running("w2")
        self.engine = RecordingEngine()
        slot = EngineSlot()
        slot.put(cast(EngineProcess, self.engine))
        shared = replace(options(), threads=None)
        tuning = Tuning(shared, HostShare(folder, cores=8))
        self.keeper = Housekeeper(self.running.hops, slot, tuning, lambda: SLOW_BATCH_SECONDS)

    def after(self, seconds: float) -> None:
        """Look after the house when so much time has gone by."""
        self.running.recording.clock.advance(seconds)
        self.keeper.look()


def test_a_session_that_nobody_feeds_is_freed_after_its_lease(tmp_path: Path) -> None:
    house = House(tmp_path)
    house.after(LEASE_SECONDS - 1)
    assert house.running.open_ids == ["s1"]
    house.after(1)
    assert house.running.open_ids == []


def test_an_engine_that_hangs_is_given_up_but_a_slow_batch_is_waited_for(tmp_path: Path) -> None:
    house = House(tmp_path)
    house.running.hops.run(MIDDLE, activations(segment(0)))
    house.after(HANGING_SECONDS + SLOW_BATCH_SECONDS)
    assert not house.engine.is_given_up
    house.after(1)
    assert house.engine.is_given_up


def test_cores_are_shared_anew_as_workers_come_and_go(tmp_path: Path) -> None:
    house = House(tmp_path)
    house.after(1)
    assert house.engine.sent == []
    with shared_host(tmp_path), shared_host(tmp_path):
        house.after(1)
        house.after(1)
    house.after(1)
    threads = [command.threads for command in house.engine.sent if isinstance(command, Tune)]
    assert threads == [4, 8]


def test_cores_that_a_volunteer_has_counted_are_not_shared(tmp_path: Path) -> None:
    tuning = Tuning(replace(options(), threads=3), HostShare(tmp_path, cores=8))
    with shared_host(tmp_path), shared_host(tmp_path):
        assert tuning.tune().threads == 3
