"""Work in a forked child of the engine, at a low priority.

The child sees the engine's memory without a copy and changes nothing in it. It ends with its
parent, whatever ends that one; and its parent can wait for its end beside other things.
"""

import contextlib
import ctypes
import os
import signal
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

LOW_PRIORITY = 10
"""Nice enough to leave the cores to Batches; at 19 it would starve beside two busy engines."""
SET_DEATH_SIGNAL = 1
"""PR_SET_PDEATHSIG of prctl(2)."""
LAST_BYTES = 2000
LAST_LINES = 3


@dataclass(slots=True)
class Child:
    """A child process that may still run."""

    pid: int
    lifeline: int
    """A descriptor that becomes readable when the child ends; closed once that was noticed."""
    words: Path
    """The file of what it says."""
    has_ended: bool = False
    exit_code: int = 0
    """Of a child that has ended; below zero it is the number of a signal."""

    def is_running(self) -> bool:
        """Look without waiting."""
        if not self.has_ended:
            self._reap(os.WNOHANG)
        return not self.has_ended

    def last_words(self) -> str:
        """How it ended, and the last lines of what it said."""
        ending = f"ended by signal {-self.exit_code}" if self.exit_code < 0 else ""
        try:
            with self.words.open("rb") as file:
                file.seek(max(0, self.words.stat().st_size - LAST_BYTES))
                lines = file.read().decode(errors="replace").splitlines()
        except OSError:
            lines = []
        said = [line.strip() for line in lines if line.strip()]
        return " | ".join(filter(None, (*said[-LAST_LINES:], ending)))

    def kill(self) -> None:
        """End it now, with whatever it has started."""
        if self.is_running():
            for end in (os.killpg, os.kill):
                with contextlib.suppress(ProcessLookupError):
                    end(self.pid, signal.SIGKILL)
            self._reap(0)

    def _reap(self, options: int) -> None:
        try:
            ended, status = os.waitpid(self.pid, options)
        except ChildProcessError:
            # Somebody else has waited for it.
            ended, status = self.pid, 0
        if ended:
            self.has_ended = True
            self.exit_code = os.waitstatus_to_exitcode(status)
            os.close(self.lifeline)


def run_in_child(work: Callable[[], None], words: Path) -> Child | None:
    """Start work in a child; None where this system cannot fork. Its failure stays its own.

    What it says goes to the file `words`. Raises OSError when there are too many processes or too
    little memory.
    """
    if not hasattr(os, "fork") or sys.platform != "linux":
        return None
    lifeline, held_by_child = os.pipe()
    try:
        pid = os.fork()
    except OSError:
        os.close(lifeline)
        os.close(held_by_child)
        raise
    if not pid:
        _work_and_end(work, held_by_child, words)
    os.close(held_by_child)
    # Both sides ask for it: whoever comes first, it is a group before anybody may end it.
    with contextlib.suppress(OSError):
        os.setpgid(pid, pid)
    return Child(pid, lifeline, words)


def _work_and_end(work: Callable[[], None], held: int, words: Path) -> None:
    exit_code = 1
    try:
        os.setpgid(0, 0)
        ctypes.CDLL(None).prctl(SET_DEATH_SIGNAL, signal.SIGKILL)
        os.nice(LOW_PRIORITY)
        _let_go_of_descriptors(held, words)
        torch.set_num_threads(1)
        work()
        exit_code = 0
    except BaseException:  # noqa: BLE001 - whatever it is, it must not get into the parent's code
        os.write(2, traceback.format_exc().encode(errors="replace"))
    finally:
        # Without the parent's own exit handlers.
        os._exit(exit_code)


def _let_go_of_descriptors(held: int, words: Path) -> None:
    # The daemon takes a closed socket for the end of its engine, so the child must not hold it.
    nothing = os.open(os.devnull, os.O_RDWR)
    said = os.open(words, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    for descriptor, source in enumerate((nothing, said, said)):
        os.dup2(source, descriptor)
    # Not inheritable: a compiler that outlived the child would hold it as well.
    kept = os.dup2(held, 3, inheritable=False)
    os.closerange(kept + 1, min(65536, os.sysconf("SC_OPEN_MAX")))
