"""A rolling restart under load: every Worker in turn is told to stop and is started again.

Two Head Workers, two in the middle and two Tail Workers of a tiny model in float32, and eight
clients that stream without a pause. A Worker that is told to stop must end with status 0; the next
one follows when the first is back and every Layer has both its replicas. No request may be lost,
and every answer must be exactly the undisturbed one.
"""

import json
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console
from rich.table import Table

from tests.mesh.faults.asking import Answered, Ask, Asking, Outcome
from tests.mesh.faults.fault_mesh import FaultMesh, FaultWorker, fault_mesh, place_of
from tests.mesh.harness import kv_report

CLIENTS = 8
LENGTHS = ((20, 60), (45, 150), (90, 100), (150, 80), (300, 120))
"""Tokens of prompts and of answers."""
SETTLED_SECONDS = 15.0
FIRST_SECONDS = 3.0
"""Load before the first Worker is told to stop, and after the last one is back."""


@dataclass(frozen=True, slots=True)
class _Restart:
    """How one Worker was restarted."""

    name: str
    place: str
    sessions: int
    """Those that it had when it was told to stop."""
    drain_seconds: float
    status: int
    back_seconds: float


@dataclass(slots=True)
class _Load:
    """What the clients have seen."""

    counts: Counter[str] = field(default_factory=Counter)
    complaints: list[str] = field(default_factory=list)
    worst_stall_seconds: float = 0.0

    def take(self, asking: Asking, expected: Outcome) -> None:
        self.worst_stall_seconds = max(self.worst_stall_seconds, asking.stall_seconds)
        verdict = "lost"
        if isinstance(asking.outcome, Answered):
            verdict = "exact" if asking.outcome == expected else "wrong"
        self.counts[verdict] += 1
        if verdict != "exact":
            self.complaints.append(f"{asking.ask} after {asking.seconds:.1f} s: {asking.outcome}")


class _Clients:
    """Clients that ask again and again while the block runs."""

    def __init__(self, url: str, expected: Mapping[Ask, Outcome]) -> None:
        self.load = _Load()
        self._url = url
        self._expected = expected
        self._asks = list(expected)
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._chat, args=(n,)) for n in range(CLIENTS)]

    def __enter__(self) -> _Load:
        for thread in self._threads:
            thread.start()
        return self.load

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _chat(self, number: int) -> None:
        while not self._stop.is_set():
            ask = self._asks[number % len(self._asks)]
            number += 1
            asking = Asking(self._url, ask)
            asking.run()
            with self._lock:
                self.load.take(asking, self._expected[ask])


def main() -> int:
    """Print the table and, as the last line, the figures as JSON; 1 if anything went wrong."""
    # A benchmark that is told to stop still ends what it has started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with TemporaryDirectory(prefix="meshnet-rolling-") as folder, fault_mesh(Path(folder)) as mesh:
        url, asks = mesh.mesh.tracker_url, [Ask(prompt, tokens) for prompt, tokens in LENGTHS]
        expected = {ask: Asking(url, ask).start().result() for ask in asks}
        began = time.monotonic()
        with _Clients(url, expected) as load:
            time.sleep(FIRST_SECONDS)
            restarts = [_restart(mesh, worker) for worker in mesh.workers]
            time.sleep(FIRST_SECONDS)
        seconds = time.monotonic() - began
        leaked = _leaked(mesh)
    return _show(load, restarts, seconds, leaked)


def _restart(mesh: FaultMesh, worker: FaultWorker) -> _Restart:
    layers = mesh.range_of(worker)
    assert layers is not None
    sessions = kv_report(worker.program).sessions
    told = time.monotonic()
    mesh.let_leave([worker])
    ended = time.monotonic()
    status = worker.program.process.returncode
    mesh.revive(worker)
    mesh.wait_until_whole()
    back = time.monotonic()
    print(f"{worker.name} is back after {back - told:.1f} s", file=sys.stderr, flush=True)
    return _Restart(worker.name, place_of(layers), sessions, ended - told, status, back - ended)


def _leaked(mesh: FaultMesh) -> int:
    """Workers that still hold something once everybody has left, with some time to settle."""
    deadline = time.monotonic() + SETTLED_SECONDS
    while mesh.held() and time.monotonic() < deadline:
        time.sleep(0.1)
    return len(mesh.held())


def _show(load: _Load, restarts: Sequence[_Restart], seconds: float, leaked: int) -> int:
    table = Table(title=f"Every Worker restarted under {CLIENTS} streams, {seconds:.0f} s")
    for heading in ("Worker", "place", "Sessions", "drained in", "status", "back after"):
        table.add_column(heading, justify="right")
    for one in restarts:
        drained, back = f"{one.drain_seconds:.1f} s", f"{one.back_seconds:.1f} s"
        table.add_row(one.name, one.place, str(one.sessions), drained, str(one.status), back)
    Console().print(table)
    for complaint in load.complaints:
        print(complaint, file=sys.stderr)
    figures = {
        "requests": load.counts.total(),
        "lost": load.counts["lost"],
        "exact": load.counts["exact"],
        "wrong": load.counts["wrong"],
        "restarts": len(restarts),
        "failed_exits": sum(one.status != 0 for one in restarts),
        "leaked": leaked,
        "slowest_drain_s": round(max(one.drain_seconds for one in restarts), 2),
        "worst_stall_s": round(load.worst_stall_seconds, 2),
    }
    print(json.dumps(figures))
    names = ("lost", "wrong", "failed_exits", "leaked")
    return int(any(figures[name] for name in names) or not figures["requests"])


if __name__ == "__main__":
    sys.exit(main())
