"""Chaos: clients chat without a pause while Workers are killed, frozen and restarted at random.

A Worker is only harmed while the rest of the Mesh still covers every Layer, so each answer must be
exactly the undisturbed one.
"""

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product

import psutil

from demo.processes import DeadlineError, Program
from tests.mesh.faults.asking import Answered, Ask, Asking, Broken, Hung, Outcome, Refused
from tests.mesh.faults.fault_mesh import NOWHERE, FaultMesh, FaultWorker
from tests.mesh.faults.harm import Fault, inflict, undo
from tests.mesh.harness import family

CLIENTS = 8
PAUSE_SECONDS = (10.0, 20.0)
AWAY_SECONDS = (2.0, 8.0)
"""How long a killed or frozen Worker stays so."""
FAULTS = (Fault.KILL, Fault.FREEZE, Fault.RESTART)
SETTLED_SECONDS = 30.0
SAMPLE_SECONDS = 2.0
LOOK_SECONDS = 0.2
MOST_GROWTH = 1.5
"""Of memory; a Worker that was started anew needs less at first, so that a short run varies."""


@dataclass(slots=True)
class ChaosReport:
    """What came of a run."""

    seed: int
    counts: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    complaints: list[str] = field(default_factory=list)
    leaked: int = 0
    tracker_mib: list[float] = field(default_factory=list)
    worker_mib: list[float] = field(default_factory=list)
    """Of the largest Worker with its engine; both from the start to the end, evenly."""

    def figures(self) -> dict[str, float]:
        names = ("exact", "clean_errors", "wrong", "hung")
        return {
            "requests": self.counts.total(),
            **{name: self.counts[name] for name in names},
            "leaked": self.leaked,
            "faults": self.faults.total(),
            "seed": self.seed,
            "tracker_growth": growth(self.tracker_mib),
            "worker_growth": growth(self.worker_mib),
        }

    @property
    def is_well(self) -> bool:
        is_flat = max(growth(self.tracker_mib), growth(self.worker_mib)) <= MOST_GROWTH
        return is_flat and not (self.counts["wrong"] or self.counts["hung"] or self.leaked)


def growth(samples: Sequence[float]) -> float:
    """The most in the last quarter of a run over the most in the second one, when it is warm."""
    quarter = len(samples) // 4
    if not quarter:
        return 1.0
    return round(max(samples[-quarter:]) / max(samples[quarter : 2 * quarter]), 3)


def chaos_asks() -> list[Ask]:
    """Short and long prompts, greedy and seeded, streamed and whole, and one that stops early."""
    choices = product((20, 150, 300), (None, 5), (True, False))
    asks = [Ask(prompt, 40 + prompt // 4, seed, is_s) for prompt, seed, is_s in choices]
    return [*asks, Ask(50, 120, stop="w1", streamed=True)]


def count(ask: Ask, outcome: Outcome, expected: Mapping[Ask, Outcome]) -> str:
    """Say which figure an answer counts for."""
    match outcome:
        case Answered():
            return "exact" if outcome == expected[ask] else "wrong"
        case Refused():
            return "clean_errors"
        case Hung():
            return "hung"
        case Broken():
            return "wrong"


class Chaos:
    """One run on one Mesh."""

    def __init__(self, mesh: FaultMesh, expected: Mapping[Ask, Outcome], seed: int) -> None:
        self._mesh = mesh
        self._expected = expected
        self._rng = random.Random(seed)
        self._seed = seed
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._away: list[_Away] = []
        self.report = ChaosReport(seed)

    def run(self, seconds: float, tell: Callable[[str], None] = print) -> ChaosReport:
        """Let clients chat and do harm for so long; then make everything good and count."""
        clients = [
            threading.Thread(target=self._chat, args=(number,), daemon=True)
            for number in range(CLIENTS)
        ]
        for client in clients:
            client.start()
        try:
            self._harm(seconds, tell)
        finally:
            self._stop.set()
            for away in self._away:
                undo(self._mesh, away.fault, away.worker)
        for client in clients:
            client.join()
        self.report.leaked = self._leaked()
        return self.report

    def _chat(self, number: int) -> None:
        rng = random.Random(f"{self._seed} {number}")
        asks: Sequence[Ask] = list(self._expected)
        while not self._stop.is_set():
            ask = rng.choice(asks)
            asking = Asking(self._mesh.mesh.tracker_url, ask)
            asking.run()
            outcome = asking.outcome or Hung()
            verdict = count(ask, outcome, self._expected)
            with self._lock:
                self.report.counts[verdict] += 1
                if verdict != "exact":
                    self.report.complaints.append(f"{ask}: {outcome}")

    def _harm(self, seconds: float, tell: Callable[[str], None]) -> None:
        began = time.monotonic()
        next_harm = began + self._rng.uniform(*PAUSE_SECONDS) / 2
        next_sample = began
        while (now := time.monotonic()) < began + seconds:
            self._bring_back(now)
            if now >= next_harm and (victim := self._victim()) is not None:
                self._do_harm(victim, now, tell)
                next_harm = now + self._rng.uniform(*PAUSE_SECONDS)
            if now >= next_sample:
                next_sample = now + SAMPLE_SECONDS
                self._sample()
            time.sleep(LOOK_SECONDS)

    def _do_harm(self, victim: FaultWorker, now: float, tell: Callable[[str], None]) -> None:
        fault = self._rng.choice(FAULTS)
        tell(f"{time.strftime('%H:%M:%S')} {fault} {victim.name}")
        self.report.faults[fault] += 1
        inflict(self._mesh, fault, victim)
        if fault is not Fault.RESTART:
            self._away.append(_Away(victim, fault, now + self._rng.uniform(*AWAY_SECONDS)))

    def _bring_back(self, now: float) -> None:
        for away in tuple(self._away):
            if now >= away.until:
                undo(self._mesh, away.fault, away.worker)
                self._away.remove(away)

    def _victim(self) -> FaultWorker | None:
        """Choose a Worker that the Mesh can do without."""
        away = [one.worker for one in self._away]
        spare = [
            worker
            for place, holders in self._mesh.holders().items()
            if place != NOWHERE and sum(one not in away for one in holders) > 1
            for worker in holders
            if worker not in away
        ]
        spare.sort(key=lambda worker: worker.name)
        return self._rng.choice(spare) if spare else None

    def _sample(self) -> None:
        tracker = (p for p in self._mesh.mesh.programs.running if p.name == "tracker")
        self.report.tracker_mib.append(max(map(_mib, tracker)))
        workers = (worker.program for worker in self._mesh.workers)
        self.report.worker_mib.append(max(map(_mib, workers)))

    def _leaked(self) -> int:
        """Workers that still hold something once everybody has left, with time to settle."""
        self._mesh.wait_until_whole()
        try:
            self._mesh.wait_for(lambda: not self._mesh.held(), SETTLED_SECONDS, "all is free")
        except DeadlineError:
            held = self._mesh.held()
            self.report.complaints += [f"{name} still holds {what}" for name, what in held.items()]
            return len(held)
        return 0


@dataclass(frozen=True, slots=True)
class _Away:
    """A Worker that is to be brought back."""

    worker: FaultWorker
    fault: Fault
    until: float


def _mib(program: Program) -> float:
    try:
        return sum(process.memory_info().rss for process in family(program)) / 2**20
    except psutil.Error:
        return 0.0
