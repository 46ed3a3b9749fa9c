"""The daemon's end of its engine process: starts it, sends commands, hears its events.

Commands that the engine answers are awaited here; everything about Sessions flows through two
callbacks. An engine that ends by itself is reported once, as EngineLostError from `run`.
"""

import asyncio
import os
import socket
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from tempfile import TemporaryDirectory
from typing import Any, cast

import structlog

from meshnet_common.errors import MeshnetError
from meshnet_common.shard_range import ShardRange
from meshnet_worker.encodings import Encodings
from meshnet_worker.engine_messages import Message, MessageParser, encode_message
from meshnet_worker.engine_port import (
    Command,
    DeviceProbed,
    DropLayers,
    EncodeFailed,
    Event,
    LayersDropped,
    LayersLoaded,
    LayersMeasured,
    LoadFailed,
    LoadLayers,
    LoadProgressed,
    Noted,
    ProbeDevice,
    SessionFailed,
    Stepped,
    TextsEncoded,
)

STOP_SECONDS = 2.0
ENGINE_ENVIRONMENT = {
    # Spinning OpenMP threads of several Workers on one host starve each other tenfold.
    "OMP_WAIT_POLICY": "passive",
    # Weights on huge pages: a decode step took 15 % less time than on small ones.
    "THP_MEM_ALLOC_ENABLE": "1",
}

log = structlog.get_logger()


class EngineLostError(MeshnetError):
    """The engine process has ended."""


class ShardLoadError(MeshnetError):
    """The engine could not load the Layers."""


@dataclass(frozen=True, slots=True)
class EngineListener:
    """Who hears what a step gave, and which Session failed."""

    on_stepped: Callable[[Stepped, bytes], None]
    on_session_failed: Callable[[SessionFailed], None]
    on_measured: Callable[[LayersMeasured], None] = lambda _measured: None


@dataclass(slots=True)
class _Answers:
    """Commands that wait for their answer; the engine answers each kind in order."""

    probe: asyncio.Future[DeviceProbed] | None = None
    loads: dict[tuple[int, int, int], asyncio.Future[LayersLoaded]] = field(default_factory=dict)
    drops: dict[tuple[int, int, int], asyncio.Future[None]] = field(default_factory=dict)
    progress: dict[int, Callable[[int, int], None]] = field(default_factory=dict)

    def fail(self, error: EngineLostError) -> None:
        waiting: list[asyncio.Future[Any]] = [*self.loads.values(), *self.drops.values()]
        for future in (self.probe, *waiting):
            if future is not None and not future.done():
                future.set_exception(error)


class EngineProcess(asyncio.Protocol):
    """One running engine process; made by `running_engine`.

    A protocol, not a stream: an event is handled in the call that brings its last byte, with no
    task to wake in between.
    """

    def __init__(self, listener: EngineListener) -> None:
        self._listener = listener
        self._parser = MessageParser()
        self._answers = _Answers()
        self._transport: asyncio.WriteTransport | None = None
        self._unsent: list[bytes] = []
        self.encodings = Encodings(self.send)
        """Texts that it makes vectors of."""
        self._lost = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Hear that the socket is ready."""
        # A cast, since uvloop's transports are no subclasses of asyncio's.
        self._transport = cast(asyncio.WriteTransport, transport)

    def data_received(self, data: bytes) -> None:
        """Handle every event that has arrived whole."""
        self._parser.feed(data)
        for message in self._parser.messages():
            self._handle(message)

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail whatever waits: the engine has ended, or an event could not be handled."""
        error = EngineLostError(f"Its socket broke: {exc!r}." if exc else "It closed its socket.")
        self._answers.fail(error)
        self.encodings.lose(error)
        if not self._lost.done():
            self._lost.set_result(error)

    def send(self, command: Command, payload: bytes = b"") -> None:
        """Send without waiting; the engine reads between steps, credits bound what waits."""
        if self._transport is None or self._transport.is_closing():
            raise EngineLostError
        if not self._unsent:
            # What one frame brought goes in one write: else the engine starts with its first row.
            asyncio.get_running_loop().call_soon(self._flush)
        self._unsent.append(encode_message(command, payload))

    def _flush(self) -> None:
        unsent, self._unsent = self._unsent, []
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(b"".join(unsent))

    @property
    def is_loading(self) -> bool:
        """Whether it has Layers to load: while it loads one, it runs no Batch."""
        return bool(self._answers.loads)

    def abandon(self) -> None:
        """Hang up on an engine that hangs; `run` then raises, and the process is ended."""
        if self._transport is not None:
            self._transport.abort()

    async def run(self) -> None:
        """Wait until the engine ends; then raise EngineLostError."""
        raise await self._lost

    async def probe(self) -> DeviceProbed:
        """Measure the device; raises EngineLostError."""
        self._answers.probe = asyncio.get_running_loop().create_future()
        self.send(ProbeDevice())
        return await self._answers.probe

    async def load(
        self, command: LoadLayers, on_progress: Callable[[int, int], None]
    ) -> LayersLoaded:
        """Load Layers; `on_progress` hears bytes done and in all. Raises ShardLoadError."""
        future: asyncio.Future[LayersLoaded] = asyncio.get_running_loop().create_future()
        self._answers.loads[command.shard, command.start, command.end] = future
        self._answers.progress[command.shard] = on_progress
        self.send(command)
        return await future

    async def drop(self, shard: int, shard_range: ShardRange) -> None:
        """Give Layers' memory back; raises EngineLostError."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._answers.drops[shard, shard_range.start, shard_range.end] = future
        self.send(DropLayers(shard, shard_range.start, shard_range.end))
        await future

    def _handle(self, message: Message) -> None:
        match message.body:
            case TextsEncoded(request=request):
                self.encodings.encoded(request, message.payload)
            case EncodeFailed(request=request, reason=reason):
                self.encodings.failed(request, reason)
            case Stepped() as stepped:
                self._listener.on_stepped(stepped, message.payload)
            case SessionFailed() as failed:
                self._listener.on_session_failed(failed)
            case LayersMeasured() as measured:
                self._listener.on_measured(measured)
            case Noted() as noted:
                tell = log.warning if noted.is_warning else log.info
                tell(noted.event, **noted.facts)
            case _ as event:
                self._answer(event)

    def _answer(self, event: Command | Event) -> None:
        answers = self._answers
        match event:
            case LoadProgressed():
                answers.progress[event.shard](event.bytes_done, event.bytes_total)
            case LayersLoaded():
                answers.loads.pop((event.shard, event.start, event.end)).set_result(event)
            case LoadFailed():
                error = ShardLoadError(event.reason)
                answers.loads.pop((event.shard, event.start, event.end)).set_exception(error)
            case LayersDropped():
                answers.drops.pop((event.shard, event.start, event.end)).set_result(None)
            case DeviceProbed() if answers.probe is not None:
                answers.probe.set_result(event)
            case _:
                raise EngineLostError(f"It said {event!r}, which nobody had asked.")


@asynccontextmanager
async def running_engine(device: str, listener: EngineListener) -> AsyncIterator[EngineProcess]:
    """Start an engine process for a device and end it with the block, whatever happens."""
    ours, theirs = socket.socketpair()
    with _scratch_folder() as scratch:
        process = await _start(theirs, device, scratch)
        theirs.close()
        log.info("engine started", pid=process.pid, device=device)
        try:
            loop = asyncio.get_running_loop()
            transport, engine = await loop.create_unix_connection(
                lambda: EngineProcess(listener), sock=ours
            )
            try:
                yield engine
            finally:
                transport.close()
        finally:
            await _end(process)


@contextmanager
def _scratch_folder() -> Iterator[str | None]:
    """Where an engine compiles: nobody else may write there, and it goes with the engine."""
    try:
        folder = TemporaryDirectory(prefix="meshnet-engine-", ignore_cleanup_errors=True)
    except OSError as error:
        log.warning("no temporary folder, so nothing is compiled", reason=str(error))
        yield None
        return
    with folder as name:
        yield name


async def _start(
    theirs: socket.socket, device: str, scratch: str | None
) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "meshnet_worker.engine.main",
        str(theirs.fileno()),
        device,
        pass_fds=[theirs.fileno()],
        env={**os.environ, **ENGINE_ENVIRONMENT, **({"TMPDIR": scratch} if scratch else {})},
    )


async def _end(process: asyncio.subprocess.Process) -> None:
    try:
        process.terminate()
        async with asyncio.timeout(STOP_SECONDS):
            await process.wait()
    except ProcessLookupError:
        await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()
    log.info("engine ended", pid=process.pid, status=process.returncode)
