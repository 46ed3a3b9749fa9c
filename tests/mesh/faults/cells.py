"""The fault table: what goes wrong x where on the Route x when x whether a replica is there.

With a replica the client sees exactly the undisturbed answer. Without one it sees that too, where
the Worker comes back by itself in time, or else one well-formed error that names the missing
Layers; and once a replacement has loaded, the same request is answered.
"""

import random
import re
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import product

from meshnet_common.shard_range import ShardRange
from meshnet_worker.daemon import LEASE_SECONDS
from tests.mesh.faults.asking import ANSWER_SECONDS, Ask, Asking, Outcome, Refused
from tests.mesh.faults.fault_mesh import PLACES, FaultMesh, FaultWorker, place_range
from tests.mesh.faults.harm import Fault, inflict, undo

STRUCK_SECONDS = 20.0
SETTLED_SECONDS = 15.0
ERROR_SECONDS = 75.0
"""The minute for which a Tracker holds a request, and slack for a machine that is busy."""
PREFILL_BYTES = 8 << 10
"""Less than one chunk's activations: when so much has come in, Prefill has begun there."""
NAMED_LAYERS = re.compile(r"of its layers 0-\d+, (?:.*\b)?(\d+)-(\d+)\b.* no ready worker")

WAKING = (Fault.FREEZE, Fault.LOSE_NETWORK)
"""Faults of which a Worker awakes in the middle of what it did."""
STALL_LIMITS = {Fault.KILL: 5.0, Fault.FREEZE: 8.0}
"""What a client may wait in mid-stream where a replica is there: a killed Worker is noticed within
two seconds, a frozen one within five."""
SOME_TEXTS = 5
"""More than what was already on its way to the client."""

LONG, SHORT = 380, 60
ANSWER_TOKENS = 100
DROP_ANSWER_TOKENS = 400
"""Some seconds: a directive takes up to one to arrive."""


class Phase(StrEnum):
    """When a fault strikes, told by what has happened until then."""

    OPEN = "open"
    """Just before the request, so that its opening meets it."""
    PREFILL = "prefill"
    """When the first chunk of the prompt has come to the Hop, or left the Head Worker."""
    DECODE = "decode"
    """When some tokens of the answer have come."""


@dataclass(frozen=True, slots=True, order=True)
class Cell:
    """One cell of the table."""

    fault: Fault
    place: str
    phase: Phase
    has_replica: bool

    def __str__(self) -> str:
        return f"{self.fault} {self.place} {self.phase} {'replica' if self.has_replica else '-'}"


class Verdict(StrEnum):
    """What came of a cell."""

    IDENTICAL = "identical"
    CLEAN_ERROR = "clean error"
    WRONG = "wrong"


@dataclass(slots=True)
class CellResult:
    """What a client saw of one cell, and what is wrong with it if anything is."""

    cell: Cell
    ask: Ask
    verdict: Verdict = Verdict.WRONG
    stall_seconds: float = 0.0
    """The longest time in which a streamed answer brought no text."""
    answer_seconds: float = 0.0
    prepare_seconds: float = 0.0
    settle_seconds: float = 0.0
    faults_found: list[str] = field(default_factory=list)

    @property
    def is_too_slow(self) -> bool:
        """Whether a client waited for longer than it should where a replica is there."""
        limit = STALL_LIMITS.get(self.cell.fault, float("inf"))
        return self.cell.has_replica and self.ask.streamed and self.stall_seconds > limit

    def __str__(self) -> str:
        found = "; ".join(self.faults_found)
        times = (self.prepare_seconds, self.answer_seconds, self.settle_seconds)
        took = " + ".join(f"{seconds:.1f}" for seconds in times)
        stall = f"stall {self.stall_seconds:.2f} s"
        return f"{self.cell}: {self.verdict}, {stall}, took {took} s, {self.ask} {found}"


def all_cells() -> list[Cell]:
    """The whole table; those without a replica last, since taking replicas away takes time."""
    return [
        Cell(fault, place, phase, has_replica)
        for has_replica, place in product((True, False), PLACES)
        for fault, phase in product(Fault, Phase)
    ]


def ask_for(cell: Cell, rng: random.Random, *, streamed: bool) -> Ask:
    """Choose a request: its prompt is long where Prefill is what is to be hit."""
    prompt = LONG if cell.phase is Phase.PREFILL else SHORT
    tokens = DROP_ANSWER_TOKENS if cell.fault is Fault.DROP else ANSWER_TOKENS
    return Ask(prompt, tokens, rng.choice((None, 7)), streamed)


class CellRunner:
    """Runs cells on one Mesh, which is whole again before each."""

    def __init__(self, mesh: FaultMesh, rng: random.Random) -> None:
        self._mesh = mesh
        self._rng = rng
        self._expected: dict[Ask, Outcome] = {}
        self._away: list[FaultWorker] = []
        """The replicas of every place, so that nobody can be moved to where one is missing."""
        self._left: dict[str, str] = {}
        """What a Head Worker that nobody replaced has left behind: it is held for its lease."""

    def expected(self, ask: Ask) -> Outcome:
        """What the undisturbed Mesh answers; a whole answer says the same as a streamed one."""
        ask = replace(ask, streamed=True)
        if ask not in self._expected:
            self._mesh.wait_until_whole(())
            self._expected[ask] = Asking(self._mesh.mesh.tracker_url, ask).start().result()
        return self._expected[ask]

    def run(self, cell: Cell, ask: Ask) -> CellResult:
        """Run one cell; raises DeadlineError if the Mesh does not get well before it."""
        result = CellResult(cell, ask)
        began = time.monotonic()
        expected = self.expected(ask)
        self._prepare(cell)
        result.prepare_seconds = time.monotonic() - began
        asking = Asking(self._mesh.mesh.tracker_url, ask)
        victim = self._strike(cell, asking, result)
        is_undone = cell.fault in WAKING and self._goes_on(asking)
        if is_undone:
            # What it still had to say comes while its Session runs on elsewhere.
            undo(self._mesh, cell.fault, victim)
        outcome = asking.result()
        result.stall_seconds, result.answer_seconds = asking.stall_seconds, asking.seconds
        self._judge(result, outcome, expected)
        ended = time.monotonic()
        if not is_undone:
            undo(self._mesh, cell.fault, victim)
        if not cell.has_replica:
            self._ask_again(result)
        self._settle(result)
        result.settle_seconds = time.monotonic() - ended
        return result

    def finish(self) -> None:
        """Bring back whoever was taken away."""
        for worker in self._away:
            self._mesh.revive(worker)
        self._away = []
        self._mesh.wait_until_whole()
        self._left = {}
        lease = LEASE_SECONDS + SETTLED_SECONDS
        self._mesh.wait_for(lambda: not self._mesh.held(), lease, "every lease has run out")

    def _prepare(self, cell: Cell) -> None:
        if cell.has_replica:
            if self._away:
                self.finish()
            self._mesh.wait_until_whole((cell.place,))
        elif self._away:
            self._mesh.wait_until_whole(())
        else:
            self._mesh.wait_until_whole()
            by_place = self._mesh.holders()
            self._away = [by_place[place][-1] for place in PLACES]
            self._mesh.let_leave(self._away)

    def _strike(self, cell: Cell, asking: Asking, result: CellResult) -> FaultWorker:
        if cell.phase is Phase.OPEN:
            victim = self._mesh.on_route(cell.place)
            inflict(self._mesh, cell.fault, victim)
            asking.start()
            return victim
        begun = self._first_chunk if cell.phase is Phase.PREFILL else self._some_tokens
        victim = begun(cell.place, asking)
        inflict(self._mesh, cell.fault, victim)
        if asking.outcome is not None:
            result.faults_found.append("the fault came too late")
        return victim

    def _goes_on(self, asking: Asking) -> bool:
        """Wait until a streamed answer goes on after the fault; False if it ended before."""
        enough = asking.texts_seen + SOME_TEXTS
        return asking.ask.streamed and asking.wait_for_texts(enough, ANSWER_SECONDS)

    def _first_chunk(self, place: str, asking: Asking) -> FaultWorker:
        """Wait until a chunk has come to this place, or from it where it is the first."""
        mesh, listens = self._mesh, PLACES[max(1, PLACES.index(place))]
        listening = {worker.worker_id for worker in mesh.holders()[listens]}
        before = _bulk(mesh)
        asking.start()
        found: list[FaultWorker] = []

        def has_come() -> bool:
            for (sender, to), size in (_bulk(mesh) - before).items():
                if to in listening and size > PREFILL_BYTES:
                    found.append(mesh.worker(sender if place == PLACES[0] else to))
            return bool(found)

        with mesh.proxies.news:
            if not mesh.proxies.news.wait_for(has_come, STRUCK_SECONDS):
                raise TimeoutError(f"no chunk came to the {place}")
        return found[0]

    def _some_tokens(self, place: str, asking: Asking) -> FaultWorker:
        """Wait until some of the answer has come, and find whom it comes from."""
        mesh, count = self._mesh, self._rng.randint(3, ANSWER_TOKENS // 2)
        holders = mesh.holders()[place]
        before = {worker.name: mesh.steps(worker, decode=True) for worker in holders}
        asking.start()
        if asking.ask.streamed:
            asking.wait_for_texts(count, STRUCK_SECONDS)
        deadline = time.monotonic() + STRUCK_SECONDS
        enough = 1 if asking.ask.streamed else count
        while time.monotonic() < deadline:
            for worker in holders:
                if mesh.steps(worker, decode=True) - before[worker.name] >= enough:
                    return worker
        raise TimeoutError(f"no Decode Step at the {place}")

    def _judge(self, result: CellResult, outcome: Outcome, expected: Outcome) -> None:
        if result.faults_found:
            # A fault that hit nothing shows nothing.
            return
        if result.is_too_slow:
            result.faults_found.append(f"nothing came for {result.stall_seconds:.1f} s")
        elif outcome == expected:
            result.verdict = Verdict.IDENTICAL
        elif result.cell.has_replica:
            result.faults_found.append(f"{outcome}, not {expected}")
        elif not isinstance(outcome, Refused) or not _names_layers(outcome, result.cell.place):
            result.faults_found.append(f"{outcome} is no clean error")
        elif result.answer_seconds > ERROR_SECONDS:
            result.faults_found.append(f"the error took {result.answer_seconds:.0f} s")
        else:
            result.verdict = Verdict.CLEAN_ERROR

    def _ask_again(self, result: CellResult) -> None:
        """Once the place is held again, the same request is answered."""
        self._mesh.wait_until_whole(())
        again = Asking(self._mesh.mesh.tracker_url, result.ask).start().result()
        if again != self.expected(result.ask):
            result.faults_found.append(f"asked again: {again}")
            result.verdict = Verdict.WRONG

    def _settle(self, result: CellResult) -> None:
        if result.verdict is Verdict.CLEAN_ERROR and result.cell.place == PLACES[0]:
            self._left = self._mesh.held()
            return
        deadline = time.monotonic() + SETTLED_SECONDS
        while (held := self._mesh.held()).items() - self._left.items():
            if time.monotonic() > deadline:
                result.faults_found.append(f"still held: {held}, before: {self._left}")
                result.verdict = Verdict.WRONG
                return
            time.sleep(0.1)


def _bulk(mesh: FaultMesh) -> Counter[tuple[str, str]]:
    """Count what went over bulk links, by who sent it to whom; either may have dialled."""
    sent: Counter[tuple[str, str]] = Counter()
    for worker in mesh.workers:
        for peer, size in tuple(worker.front.bulk_in.items()):
            sent[peer, worker.worker_id] += size
        for peer, size in tuple(worker.front.bulk_out.items()):
            sent[worker.worker_id, peer] += size
    return sent


def _names_layers(error: Refused, place: str) -> bool:
    """Whether an error names Layers of this place as the missing ones."""
    named = NAMED_LAYERS.search(error.message)
    if named is None:
        return False
    return ShardRange(int(named[1]), int(named[2]) + 1).overlap(place_range(place)) is not None
