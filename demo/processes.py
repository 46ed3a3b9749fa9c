"""Starts programs of this repository as real processes, waits for them, and ends every one.

Each program gets a process group of its own, so that Ctrl-C reaches only who started it, and
whoever started it can also end what the program itself has started. Logs go to files, and an error
carries the tail of the failing program's log. The demo and the mesh tests share this.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self, TypeVar

STOP_SECONDS = 5.0
READY_SECONDS = 60.0
POLL_SECONDS = (0.05, 0.25)
"""Between two looks at what is waited for: at first, and after a while."""
LOG_TAIL_LINES = 30

T = TypeVar("T")


class ProgramFailedError(Exception):
    """A program ended before it was asked to; the message carries the tail of its log."""


class DeadlineError(Exception):
    """A condition did not come true within its deadline."""


@dataclass(frozen=True, slots=True)
class Program:
    """One running program; `url` is what it wrote into its ready file."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path
    ready_file: Path

    @property
    def url(self) -> str:
        return self.ready_file.read_text().strip()

    def has_ended(self) -> bool:
        return self.process.poll() is not None

    def log_tail(self) -> str:
        return _tail(self.log)


class Programs:
    """All programs that were started here; leaving the `with` block ends every one of them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.running: list[Program] = []
        self._ending: list[Program] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop_all()

    def start(
        self, name: str, arguments: Sequence[str], environment: Mapping[str, str] | None = None
    ) -> Program:
        """Start a program that takes `--ready-file`, without waiting for it."""
        ready_file = self._folder / f"{name}.url"
        ready_file.unlink(missing_ok=True)
        log = self._folder / f"{name}.log"
        with log.open("ab") as output:
            process = subprocess.Popen(
                (*arguments, "--ready-file", str(ready_file)),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, **(environment or {})},
            )
        program = Program(name, process, log, ready_file)
        self.running.append(program)
        return program

    def wait_until_ready(self, *programs: Program, seconds: float = READY_SECONDS) -> None:
        """Wait until each has written its URL; raises ProgramFailedError or DeadlineError."""
        for program in programs:
            self.wait_for(program.ready_file.exists, seconds, f"{program.name} listens")

    def wait_for(self, condition: Callable[[], T | None], seconds: float, what: str) -> T:
        """Poll until the condition is true and return its value.

        Raises ProgramFailedError as soon as a program ends by itself, DeadlineError otherwise.
        """
        began = time.monotonic()
        while not (value := condition()):
            self._check_running()
            waited = time.monotonic() - began
            if waited > seconds:
                raise DeadlineError(f"{what}: not within {seconds:g} s\n{self.log_tails()}")
            time.sleep(pause_seconds(waited))
        return value

    def let_end(self, program: Program, number: signal.Signals) -> None:
        """Send a signal that ends this program; that it ends is no error from now on."""
        self.running.remove(program)
        self._ending.append(program)
        program.process.send_signal(number)

    def stop_all(self) -> None:
        """End every program that was started here, also those that should have ended."""
        self.stop(*self.running, *self._ending)

    def stop(self, *programs: Program, seconds: float = STOP_SECONDS) -> None:
        """End these programs: SIGTERM, and SIGKILL to what is left of their groups."""
        for program in programs:
            program.process.terminate()
        deadline = time.monotonic() + seconds
        for program in programs:
            with suppress(subprocess.TimeoutExpired):
                program.process.wait(max(0.0, deadline - time.monotonic()))
        for program in programs:
            self.kill(program)

    def kill(self, program: Program) -> None:
        """End a program and whatever it has started, at once."""
        with suppress(ProcessLookupError):
            os.killpg(program.process.pid, signal.SIGKILL)
        program.process.wait()
        for programs in (self.running, self._ending):
            if program in programs:
                programs.remove(program)

    def log_tails(self) -> str:
        """Quote the end of every log, also of programs that have ended since."""
        logs = sorted(self._folder.glob("*.log"))
        return "\n".join(f"--- {log.stem}\n{_tail(log)}" for log in logs)

    def _check_running(self) -> None:
        for program in self.running:
            if program.has_ended():
                status = program.process.returncode
                raise ProgramFailedError(
                    f"{program.name} ended with status {status}:\n{program.log_tail()}"
                )


def pause_seconds(waited: float) -> float:
    """How long to leave what is waited for alone: a look takes time from those who work on it."""
    shortest, longest = POLL_SECONDS
    return min(shortest + waited / 50, longest)


def command(name: str) -> str:
    """The path of one of our console scripts, installed beside this interpreter."""
    return str(Path(sys.executable).with_name(name))


def _tail(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines()
    return "\n".join(f"    {line}" for line in lines[-LOG_TAIL_LINES:])
