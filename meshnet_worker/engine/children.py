"""Work in a forked child of the engine, at a low priority.

The child sees the engine's memory without a copy and changes nothing in it. It ends with its
parent, whatever ends that one.
"""

import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass

import torch

LOW_PRIORITY = 10
"""Nice enough to leave the cores to Batches; at 19 it would starve beside two busy engines."""
SET_DEATH_SIGNAL = 1
"""PR_SET_PDEATHSIG of prctl(2)."""


@dataclass(slots=True)
class Child:
    """A child process that may still run."""

    pid: int
    has_ended: bool = False

    def is_running(self) -> bool:
        """Look without waiting."""
        if not self.has_ended:
            self.has_ended = _reap(self.pid, os.WNOHANG)
        return not self.has_ended

    def kill(self) -> None:
        """End it now, with whatever it has started."""
        if self.is_running():
            for end in (os.killpg, os.kill):
                with contextlib.suppress(ProcessLookupError):
                    end(self.pid, signal.SIGKILL)
            self.has_ended = _reap(self.pid, 0)


def run_in_child(work: Callable[[], None]) -> Child | None:
    """Start work in a child; None where this system cannot fork. Its failure stays its own.

    Raises OSError when there are too many processes or too little memory.
    """
    if not hasattr(os, "fork") or sys.platform != "linux":
        return None
    pid = os.fork()
    if pid:
        # Both sides ask for it: whoever comes first, it is a group before anybody may end it.
        with contextlib.suppress(OSError):
            os.setpgid(pid, pid)
        return Child(pid)
    try:
        os.setpgid(0, 0)
        ctypes.CDLL(None).prctl(SET_DEATH_SIGNAL, signal.SIGKILL)
        os.nice(LOW_PRIORITY)
        _let_go_of_descriptors()
        torch.set_num_threads(1)
        work()
    finally:
        # Without the parent's own exit handlers.
        os._exit(0)


def _reap(pid: int, options: int) -> bool:
    try:
        ended, _ = os.waitpid(pid, options)
    except ChildProcessError:
        # Somebody else has waited for it.
        return True
    return ended != 0


def _let_go_of_descriptors() -> None:
    # The daemon takes a closed socket for the end of its engine, so the child must not hold it.
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):
        os.dup2(nothing, descriptor)
    os.closerange(3, min(65536, os.sysconf("SC_OPEN_MAX")))
