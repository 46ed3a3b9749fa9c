"""Runs the real `meshnet-tracker` and ends it again, for tests of what only a process can show."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.tracker.running import until

COMMAND = str(Path(sys.executable).with_name("meshnet-tracker"))
START_SECONDS = 20.0


@dataclass(frozen=True)
class Ended:
    """What a command that has ended left behind."""

    status: int
    output: str
    errors: str


async def run_command(*arguments: str, **environment: str) -> Ended:
    """Run a command to its end."""
    process = await asyncio.create_subprocess_exec(
        COMMAND,
        *arguments,
        env={**os.environ, **environment},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(START_SECONDS):
        output, errors = await process.communicate()
    return Ended(process.returncode or 0, output.decode(), errors.decode())


@dataclass(frozen=True)
class TrackerProcess:
    """A Tracker that listens, in a process of its own."""

    process: asyncio.subprocess.Process
    url: str
    log: Path

    async def stop(self, seconds: float = 5.0) -> int:
        """Send SIGTERM; raises TimeoutError if it takes longer."""
        self.process.terminate()
        async with asyncio.timeout(seconds):
            return await self.process.wait()


@asynccontextmanager
async def tracker_process(folder: Path, *options: str) -> AsyncIterator[TrackerProcess]:
    """Start `serve` on a free port with its database in this folder; killed if it still runs."""
    ready_file, log = folder / "tracker.url", folder / "tracker.log"
    ready_file.unlink(missing_ok=True)
    where = ("--database", str(folder / "tracker.sqlite3"), "--ready-file", str(ready_file))
    with log.open("ab") as output:
        process = await asyncio.create_subprocess_exec(
            *(COMMAND, "serve", "--port", "0", *where, *options),
            stdout=output,
            stderr=output,
        )
    try:
        await until(lambda: ready_file.exists() or process.returncode is not None, START_SECONDS)
        assert process.returncode is None, log.read_text()
        yield TrackerProcess(process, ready_file.read_text().strip(), log)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
