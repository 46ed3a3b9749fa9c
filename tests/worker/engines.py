"""One real engine process for all tests that need one: starting it costs seconds.

Tests of one process share Shard and Session numbers, so each takes numbers that no other uses.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path

from meshnet_worker.engine_port import LoadLayers, SessionFailed, SizePool, Stepped
from meshnet_worker.engine_process import EngineListener, EngineProcess, running_engine
from tests.worker.models import LAYERS
from tests.worker.waiting import Changes

WHOLE_LLAMA = 0
"""The number of a Shard that is always there: every Layer of the small Llama."""
BLOCKS = 60
"""KV Blocks of each of its Layers."""


class SharedEngine:
    """The engine, and what its Sessions gave."""

    def __init__(self) -> None:
        self.steps: list[tuple[Stepped, bytes]] = []
        self.failures: list[SessionFailed] = []
        self.changes = Changes()
        self.on_stepped: Callable[[Stepped, bytes], None] = lambda _stepped, _payload: None
        self.on_failed: Callable[[SessionFailed], None] = lambda _failed: None
        self.numbers = count(1000, 1000)
        self.listener = EngineListener(self._on_stepped, self._on_failed)
        self._engine: EngineProcess | None = None

    @property
    def engine(self) -> EngineProcess:
        assert self._engine is not None
        return self._engine

    def forget(self) -> None:
        """Make ready for the next test."""
        self.steps.clear()
        self.failures.clear()
        self.on_stepped = lambda _stepped, _payload: None
        self.on_failed = lambda _failed: None

    def token_of(self, session: int) -> int | None:
        tokens = [r.token_id for s, _ in self.steps for r in s.results if r.session == session]
        return tokens[-1] if tokens else None

    def ran(self, session: int) -> bool:
        return any(r.session == session for stepped, _ in self.steps for r in stepped.results)

    def failed(self, session: int) -> bool:
        return any(failed.session == session for failed in self.failures)

    def use(self, engine: EngineProcess) -> None:
        self._engine = engine

    def _on_stepped(self, stepped: Stepped, payload: bytes) -> None:
        self.steps.append((stepped, payload))
        self.on_stepped(stepped, payload)
        self.changes.tell()

    def _on_failed(self, failed: SessionFailed) -> None:
        self.failures.append(failed)
        self.on_failed(failed)
        self.changes.tell()


def load(folder: Path, shard: int, start: int = 0, end: int = LAYERS) -> LoadLayers:
    return LoadLayers(shard, str(folder), "float32", start, end)


def ignore_progress(_bytes_done: int, _bytes_total: int) -> None:
    """Hear how far a load is, and do nothing about it."""


@asynccontextmanager
async def engine_with_llama(folder: Path) -> AsyncIterator[SharedEngine]:
    shared = SharedEngine()
    async with running_engine("cpu", shared.listener) as engine, asyncio.TaskGroup() as tasks:
        shared.use(engine)
        hearing = tasks.create_task(engine.run())
        await engine.load(load(folder, WHOLE_LLAMA), ignore_progress)
        engine.send(SizePool(WHOLE_LLAMA, BLOCKS))
        yield shared
        hearing.cancel()
