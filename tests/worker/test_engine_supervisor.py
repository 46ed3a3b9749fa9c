import asyncio

import psutil
import pytest
import torch

from meshnet_common.presets import ModelPreset
from meshnet_common.protocol.messages import ShardState
from meshnet_worker import engine_supervisor
from meshnet_worker.engine_port import ArmSession, CloseSession, OpenSession, RunSegment, Tune
from meshnet_worker.engine_process import EngineLostError, EngineProcess
from meshnet_worker.engine_supervisor import (
    DeviceError,
    EngineOwner,
    EngineSlot,
    EngineSupervisor,
)
from meshnet_worker.keeper import ShardKeeper
from meshnet_worker.kv_budget import KvBudget
from meshnet_worker.sessions import SessionTable
from meshnet_worker.shards import ShardTable
from tests.common.builders import preset
from tests.worker.builders import GREEDY, LEASE_SECONDS, directive, local_weights
from tests.worker.conftest import ModelFolders
from tests.worker.engines import SharedEngine
from tests.worker.models import HIDDEN_SIZE, LAYERS, greedy_answer, prompt_of
from tests.worker.waiting import Changes, ending_tasks

START_SECONDS = 60.0


def engines_of_this_process() -> set[psutil.Process]:
    children = psutil.Process().children()
    return {child for child in children if "meshnet_worker.engine.main" in child.cmdline()}


class Owner:
    """What a daemon does for its engine, with real Shards; it counts the engines."""

    def __init__(self, folder: str) -> None:
        self.model = preset(source=folder, hidden_size=HIDDEN_SIZE)
        self.shards = ShardTable()
        self.slot = EngineSlot()
        sessions, kv = SessionTable(LEASE_SECONDS), KvBudget(100_000)
        self.keeper = ShardKeeper(self.shards, sessions, kv, self.slot, local_weights())
        self.results = SharedEngine()
        self.changes = Changes()
        self.prepared = 0
        self.lost = 0

    def supervisor(self) -> EngineSupervisor:
        owner = EngineOwner(self.prepare, self.on_lost)
        return EngineSupervisor("cpu", self.slot, self.results.listener, owner)

    async def prepare(self, engine: EngineProcess) -> None:
        await self.keeper.restore(engine)
        self.prepared += 1
        self.changes.tell()

    def on_lost(self) -> None:
        self.lost += 1
        self.keeper.forget_engine()

    async def load_all(self) -> None:
        await self.keeper.obey(directive(0, LAYERS), self.fetch_preset)

    async def fetch_preset(self, _name: str) -> ModelPreset:
        return self.model

    async def token_of_session(self, session: int) -> int | None:
        (shard,) = self.shards
        self.slot.send(OpenSession(session, shard.number, 0, LAYERS, 20), b"")
        self.slot.send(ArmSession(session, (1, 0), GREEDY), b"")
        ids = tuple(prompt_of(9))
        self.slot.send(RunSegment(session, (1, 0), 0, 9, token_ids=ids, draws=True), b"")
        await self.results.changes.until(lambda: self.results.ran(session))
        return self.results.token_of(session)


@pytest.mark.parametrize("hangs", [False, True], ids=["killed", "hanging"])
async def test_a_lost_engine_is_started_again_with_its_shards(
    hangs: bool, model_folders: ModelFolders, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Every engine counts as one that ran long: only the first of these waits may be taken.
    monkeypatch.setattr(engine_supervisor, "STABLE_SECONDS", 0.0)
    monkeypatch.setattr(engine_supervisor, "RESTART_SECONDS", (0.0, 600.0))
    others = engines_of_this_process()
    owner = Owner(str(model_folders("llama")))
    expected = greedy_answer("llama", 9, 1)[0]
    async with asyncio.timeout(START_SECONDS), ending_tasks() as tasks:
        supervisor = owner.supervisor()
        tasks.create_task(supervisor.run())
        assert (await supervisor.probed).device == "cpu"
        first = await owner.slot.get()
        await owner.load_all()
        assert await owner.token_of_session(1) == expected

        (process,) = engines_of_this_process() - others
        if hangs:
            process.suspend()
            owner.slot.abandon()
        else:
            process.kill()
        with pytest.raises(EngineLostError):
            await first.run()
        owner.slot.send(CloseSession(1), b"")

        await owner.changes.until(lambda: owner.prepared == 2, START_SECONDS)
        assert await owner.slot.get() is not first
        assert [report.state for report in owner.shards.reports()] == [ShardState.READY]
        assert await owner.token_of_session(2) == expected
        assert (owner.prepared, owner.lost) == (2, 1)
    assert engines_of_this_process() == others


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
async def test_a_device_that_cannot_be_used_is_named() -> None:
    owner = EngineOwner(Owner("nowhere").prepare, lambda: None)
    listener = SharedEngine().listener
    supervisor = EngineSupervisor("cuda:7", EngineSlot(), listener, owner)
    async with asyncio.timeout(START_SECONDS):
        with pytest.raises(DeviceError, match="cuda:7") as caught:
            await supervisor.run()
    assert caught.value.exit_status == 4
    supervisor.probed.cancel()


async def test_a_slot_waits_for_an_engine() -> None:
    slot = EngineSlot()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await slot.get()


async def test_without_an_engine_commands_are_moot() -> None:
    slot = EngineSlot()
    slot.send(CloseSession(1), b"")
    slot.send(Tune(2), b"")


async def test_a_slot_knows_its_engine_until_that_is_lost(shared_engine: SharedEngine) -> None:
    slot = EngineSlot()
    assert not slot.holds(shared_engine.engine)
    slot.put(shared_engine.engine)
    assert slot.holds(shared_engine.engine)
    slot.clear()
    assert not slot.holds(shared_engine.engine)
