"""Listening, readiness and a clean end: the same for tracker, worker and gateway.

`listening` is a context manager, for a daemon that has other tasks in its TaskGroup;
`serve_until_signal` is for a program that only serves.
"""

import asyncio
import errno
import ipaddress
import os
import signal
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from aiohttp import web

from meshnet_common.edge.refusing import RefusingRunner
from meshnet_common.errors import MeshnetError

# aiohttp grants it twice, for requests to end and for cancelled ones to clean up: 3 s in all.
SHUTDOWN_GRACE_SECONDS = 1.5

_ANY_ADDRESS = frozenset({"0.0.0.0", "::"})  # noqa: S104 - compared with, never bound to
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class PortInUseError(MeshnetError):
    """The port is already in use."""

    exit_status = 3


class ListenError(MeshnetError):
    """Listening on this address is not possible."""

    exit_status = 3


class ReadyFileError(MeshnetError):
    """The ready file cannot be written."""

    exit_status = 3


@asynccontextmanager
async def listening(app: web.Application, host: str, port: int) -> AsyncIterator[str]:
    """Serve until the block ends; yields the base URL, with the picked port if `port` is 0.

    On the way out open requests get a moment, then they are cancelled. Raises PortInUseError or
    ListenError.
    """
    # aiohttp's default leaves a handler running when its client has gone.
    runner = RefusingRunner(
        app,
        handler_cancellation=True,
        shutdown_timeout=SHUTDOWN_GRACE_SECONDS,
        access_log=None,
    )
    await runner.setup()
    try:
        await _bind(runner, host, port)
        yield _base_url(runner)
    finally:
        await runner.cleanup()


async def serve_until_signal(
    app: web.Application,
    host: str,
    port: int,
    on_ready: Callable[[str], None] | None = None,
) -> None:
    """Serve until SIGTERM or SIGINT; `on_ready` gets the base URL once connections are accepted."""
    with stop_on_signal() as stop:
        async with listening(app, host, port) as url:
            if on_ready is not None:
                on_ready(url)
            await stop.wait()


@contextmanager
def stop_on_signal() -> Iterator[asyncio.Event]:
    """Set an event at the first SIGTERM or SIGINT; a second one ends the process at once."""
    with _counted_signals(1) as (stop,):
        yield stop


@contextmanager
def stop_and_hurry_on_signal() -> Iterator[tuple[asyncio.Event, asyncio.Event]]:
    """Set one event at the first SIGTERM or SIGINT, another at the second; a third ends it all."""
    with _counted_signals(2) as (stop, hurry):
        yield stop, hurry


@contextmanager
def _counted_signals(count: int) -> Iterator[tuple[asyncio.Event, ...]]:
    loop = asyncio.get_running_loop()
    events = tuple(asyncio.Event() for _ in range(count))

    def on_signal() -> None:
        next(event for event in events if not event.is_set()).set()
        if events[-1].is_set():
            release()

    def release() -> None:
        for number in _STOP_SIGNALS:
            loop.remove_signal_handler(number)

    for number in _STOP_SIGNALS:
        loop.add_signal_handler(number, on_signal)
    try:
        yield events
    finally:
        release()


def write_ready_file(path: str | Path, url: str) -> None:
    """Write the base URL and a line end in one step, so that nobody reads half of it."""
    target = Path(path)
    try:
        descriptor, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        with os.fdopen(descriptor, "w") as file:
            file.write(f"{url}\n")
        Path(temporary).replace(target)
    except OSError as error:
        raise ReadyFileError(f"{target}: {error.strerror}. Choose another --ready-file.") from error


async def _bind(runner: web.AppRunner, host: str, port: int) -> None:
    try:
        await web.TCPSite(runner, host, port).start()
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            facts = f"Port {port} on {host}: another program listens there."
            advice = "Stop that program or choose another --port (0 picks a free one)."
            raise PortInUseError(f"{facts} {advice}") from error
        advice = "Check --host and --port."
        raise ListenError(f"{host}:{port}: {error.strerror or error}. {advice}") from error


def _base_url(runner: web.AppRunner) -> str:
    host, port = runner.addresses[0][:2]
    if host in _ANY_ADDRESS:
        host = "127.0.0.1"
    if ipaddress.ip_address(host).version == 6:
        host = f"[{host}]"
    return f"http://{host}:{port}"
