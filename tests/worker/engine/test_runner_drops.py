"""What becomes of Sessions and KV Blocks when Layers are dropped under them."""

import pytest

from meshnet_worker.engine.loader import Loader
from meshnet_worker.engine.runner import BatchRunner
from meshnet_worker.engine_port import (
    DropLayers,
    Event,
    LoadLayers,
    OpenSession,
    RunSegment,
    SessionFailed,
    SizePool,
)
from tests.worker.conftest import ModelFolders
from tests.worker.engine.splitting import CPU
from tests.worker.models import LAYERS

BLOCKS = 4


class Held:
    """One whole Llama on a runner, with two Sessions that have written KV."""

    def __init__(self, folder: str) -> None:
        self.events: list[Event] = []
        self.loader = Loader(CPU, self._send)
        self.runner = BatchRunner(self.loader.shards, CPU, self._send)
        self.loader.add(LoadLayers(0, folder, "float32", 0, LAYERS))
        while self.loader.has_work:
            self.loader.step()
        self.runner.size_pool(SizePool(0, BLOCKS))
        for session, end in ((1, LAYERS), (2, 1)):
            self.runner.change(OpenSession(session, 0, 0, end, 10))
            self.runner.add(RunSegment(session, (1, 0), 0, 3, token_ids=(3, 4, 5)), b"")
        while self.runner.has_work:
            self.runner.step()

    def drop(self, start: int, end: int) -> list[int]:
        """Drop Layers as the engine does; the Sessions that failed."""
        self.events.clear()
        command = DropLayers(0, start, end)
        self.loader.drop(command)
        self.runner.drop(command)
        return [event.session for event in self.events if isinstance(event, SessionFailed)]

    def _send(self, event: Event, _payload: bytes) -> None:
        self.events.append(event)


@pytest.fixture
def held(model_folders: ModelFolders) -> Held:
    return Held(str(model_folders("llama")))


def test_a_shard_that_is_dropped_takes_its_pool_and_its_sessions_along(held: Held) -> None:
    assert held.drop(0, LAYERS) == [1, 2]
    assert held.runner.free_blocks() == {}


def test_dropped_layers_fail_only_the_sessions_that_run_on_them(held: Held) -> None:
    assert held.drop(LAYERS - 1, LAYERS) == [1]
    assert held.runner.free_blocks()[0][0] == BLOCKS - 1
