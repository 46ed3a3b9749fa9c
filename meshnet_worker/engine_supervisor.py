"""Keeps one engine process running: starts it, restores its Shards, starts it again when it ends.

A crashed driver or an out-of-memory kill costs the Sessions on this Worker, never the daemon.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import structlog

from meshnet_common.errors import MeshnetError
from meshnet_worker.engine_port import Command, DeviceProbed
from meshnet_worker.engine_process import (
    EngineListener,
    EngineLostError,
    EngineProcess,
    running_engine,
)

RESTART_SECONDS = (0.0, 1.0, 5.0, 15.0)
"""Waits before an engine that keeps ending is started again; the last one repeats."""
STABLE_SECONDS = 60.0
"""An engine that ran this long starts the waits from the first one again."""

log = structlog.get_logger()


class DeviceError(MeshnetError):
    """The device cannot be used."""

    exit_status = 4


class EngineSlot:
    """The engine that runs now, if one does."""

    def __init__(self) -> None:
        self._engine: EngineProcess | None = None
        self._is_up = asyncio.Event()

    def put(self, engine: EngineProcess) -> None:
        self._engine = engine
        self._is_up.set()

    def clear(self) -> None:
        self._engine = None
        self._is_up.clear()

    async def get(self) -> EngineProcess:
        """Wait for an engine whose Shards are restored."""
        while self._engine is None:
            await self._is_up.wait()
        return self._engine

    def holds(self, engine: EngineProcess) -> bool:
        """Whether this is still the engine that `get` answers."""
        return self._engine is engine

    def send(self, command: Command, payload: bytes) -> None:
        """Send to the engine; without one the command is moot, for its Sessions have failed."""
        if self._engine is not None:
            try:
                self._engine.send(command, payload)
            except EngineLostError:
                self.clear()

    @property
    def is_loading(self) -> bool:
        """Whether an engine runs that loads Layers."""
        return self._engine is not None and self._engine.is_loading

    def abandon(self) -> None:
        """Give an engine up that hangs; its supervisor starts another."""
        if self._engine is not None:
            self._engine.abandon()


@dataclass(frozen=True, slots=True)
class EngineOwner:
    """What the daemon does for an engine: prepare a new one, and clear up after a lost one."""

    prepare: Callable[[EngineProcess], Awaitable[None]]
    on_lost: Callable[[], None]


class EngineSupervisor:
    """Runs the engine of one device for ever."""

    def __init__(
        self, device: str, slot: EngineSlot, listener: EngineListener, owner: EngineOwner
    ) -> None:
        self._device = device
        self._slot = slot
        self._listener = listener
        self._owner = owner
        self.probed: asyncio.Future[DeviceProbed] = asyncio.get_running_loop().create_future()
        """The device's facts, measured once."""

    async def run(self) -> None:
        """Start engines until cancelled; raises DeviceError if the first one cannot start."""
        failures = 0
        while True:
            started = asyncio.get_running_loop().time()
            try:
                await self._run_one()
            except* EngineLostError as lost:
                log.warning("engine lost", reason=str(lost.exceptions[0]))
            self._slot.clear()
            self._owner.on_lost()
            if not self.probed.done():
                raise DeviceError(f"The engine for {self._device!r} ended; see its messages above.")
            is_stable = asyncio.get_running_loop().time() - started > STABLE_SECONDS
            failures = 1 if is_stable else failures + 1
            await asyncio.sleep(RESTART_SECONDS[min(failures, len(RESTART_SECONDS)) - 1])

    async def _run_one(self) -> None:
        async with (
            running_engine(self._device, self._listener) as engine,
            asyncio.TaskGroup() as tasks,
        ):
            tasks.create_task(engine.run())
            if not self.probed.done():
                self.probed.set_result(await engine.probe())
            await self._owner.prepare(engine)
            self._slot.put(engine)
