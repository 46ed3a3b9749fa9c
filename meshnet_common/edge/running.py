"""The way out of a command: run its coroutine, turn an expected error into text and a status.

What a person can act on says what happened, why, and what to do, without a traceback; anything
else keeps its traceback, since it is a fault of ours.
"""

import asyncio
import signal
import sys
from collections.abc import Coroutine
from typing import Any

import uvloop

from meshnet_common.errors import MeshnetError

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_CONFIGURATION = 3
"""Configuration, port or database."""
EXIT_NO_DEVICE = 4
EXIT_MEMORY = 5
EXIT_TRACKER = 6
EXIT_AUTHENTICATION = 7
EXIT_INTEGRITY = 8


def run_main(program: str, main: Coroutine[Any, Any, None]) -> None:
    """Run a command's coroutine on uvloop; raises SystemExit with the status of what went wrong.

    A MeshnetError ends with its `exit_status`, or 1 if it has none, also out of a TaskGroup. A
    stop signal before the program listens ends with 0, as later.
    """
    try:
        uvloop.run(_until_signal(main))
    except MeshnetError as error:
        raise SystemExit(_report(program, (error,))) from error
    except BaseExceptionGroup as group:
        expected, unexpected = group.split(MeshnetError)
        if expected is None or unexpected is not None:
            raise
        raise SystemExit(_report(program, _leaves(expected))) from group


async def _until_signal(main: Coroutine[Any, Any, None]) -> None:
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()
    stopped = False

    def stop() -> None:
        nonlocal stopped
        stopped = True
        if task is not None:
            task.cancel()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    try:
        await main
    except asyncio.CancelledError:
        if not stopped:
            raise


def _report(program: str, errors: tuple[MeshnetError, ...]) -> int:
    for error in errors:
        sys.stderr.write(f"{program}: {error}\n")
    return next((_exit_status(error) for error in errors), EXIT_FAILED)


def _exit_status(error: MeshnetError) -> int:
    status = getattr(error, "exit_status", EXIT_FAILED)
    return status if isinstance(status, int) else EXIT_FAILED


def _leaves(group: BaseExceptionGroup[MeshnetError]) -> tuple[MeshnetError, ...]:
    leaves: list[MeshnetError] = []
    for error in group.exceptions:
        leaves.extend(_leaves(error) if isinstance(error, BaseExceptionGroup) else (error,))
    return tuple(leaves)
