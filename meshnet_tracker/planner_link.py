"""Starts the planner process, asks it for passes, and starts it again when it is gone.

Planning ten thousand Workers takes a second of processor time, in which this process could answer
nobody.
"""

import asyncio
import sys
from asyncio.subprocess import PIPE, Process
from contextlib import suppress
from typing import Self

from meshnet_common.errors import MeshnetError
from meshnet_tracker.planner_messages import (
    MAX_LINE_BYTES,
    DatabaseAway,
    Opening,
    PassFailed,
    Planned,
    PlanRequest,
    decode_answer,
    encode_line,
)
from meshnet_tracker.planning.snapshot import PlannerPolicy
from meshnet_tracker.store.errors import DatabaseUnavailableError

PASS_SECONDS = 60.0
"""A pass that takes longer hangs."""

END_SECONDS = 2.0
COMMAND = (sys.executable, "-m", "meshnet_tracker.planner_process")


class PlannerError(MeshnetError):
    """The planner process did not answer with a plan."""


class PlannerLink:
    """One planner process at a time; use it as a context, which ends the process."""

    def __init__(self, database: str) -> None:
        self._database = database
        self._process: Process | None = None

    @property
    def process_id(self) -> int | None:
        return None if self._process is None else self._process.pid

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._end()

    async def plan(self, policy: PlannerPolicy, now: float) -> Planned:
        """Ask for a pass, one at a time; raises PlannerError and DatabaseUnavailableError."""
        try:
            async with asyncio.timeout(PASS_SECONDS):
                line = await self._ask(encode_line(PlanRequest(policy, now)))
        except (OSError, ValueError) as error:
            await self._end()
            raise PlannerError(f"{type(error).__name__}.") from error
        except BaseException:
            # Its answer would come when another one is waited for.
            await self._end()
            raise
        if not line.endswith(b"\n"):
            await self._end()
            raise PlannerError("It ended in the middle of a pass.")
        match decode_answer(line):
            case Planned() as planned:
                return planned
            case DatabaseAway(reason):
                raise DatabaseUnavailableError(reason)
            case PassFailed(reason):
                raise PlannerError(reason)

    async def _ask(self, line: bytes) -> bytes:
        process = await self._running()
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(line)
        await process.stdin.drain()
        return await process.stdout.readline()

    async def _running(self) -> Process:
        if self._process is not None and self._process.returncode is not None:
            await self._end()
        if self._process is None:
            self._process = await asyncio.create_subprocess_exec(
                *COMMAND, stdin=PIPE, stdout=PIPE, limit=MAX_LINE_BYTES
            )
            assert self._process.stdin is not None
            self._process.stdin.write(encode_line(Opening(self._database)))
        return self._process

    async def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        with suppress(ProcessLookupError):
            process.kill()
        # To the end of its pipes, so that nothing of it is left open.
        with suppress(TimeoutError, OSError):
            async with asyncio.timeout(END_SECONDS):
                await process.communicate()
