"""Another order of Workers, where no filling of gaps reaches full coverage in the present one.

A goal gives each Worker consecutive Layers. Towards it Workers only load inside their part or on
the way to it, and only drop outside it what others are ready to serve: make before break. Whether
that arrives is tried out here before anything is ordered, so that nobody starts on a way that ends
half-way; of the goals that are reached the one with fewest Layers to load is taken. The next pass
starts again from what is held then.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import permutations

from meshnet_common.ids import WorkerId
from meshnet_common.protocol.messages import DirectiveKind
from meshnet_common.shard_range import ShardRange
from meshnet_tracker.planning.capacity import LayerSizes
from meshnet_tracker.planning.orders import Candidate, Placement
from meshnet_tracker.planning.placement import fill_range

MOST_WORKERS = 6
"""Every order of so many Workers is tried; with more of them nothing is rearranged."""
MOST_TRIALS = 24
"""How many of the goals are tried up to their end, nearest first."""


@dataclass(frozen=True, slots=True)
class Mover:
    """A Worker that may be moved; `run` is what it holds of the Variant."""

    candidate: Candidate
    run: ShardRange | None

    @property
    def worker_id(self) -> WorkerId:
        return self.candidate.worker_id


@dataclass(frozen=True, slots=True)
class Step:
    """One directive on the way."""

    worker_id: WorkerId
    kind: DirectiveKind
    shard_range: ShardRange


@dataclass(frozen=True, slots=True)
class Situation:
    """Who holds what, and how often each Layer is ready, at one point of the way."""

    sizes: LayerSizes
    movers: tuple[Mover, ...]
    ready: tuple[int, ...]

    def steps_to(self, goal: Mapping[WorkerId, ShardRange]) -> list[Step]:
        """Give the next step of everybody who can make one; a missing Layer is loaded once."""
        ready = list(self.ready)
        missing = {layer for layer, count in enumerate(ready) if not count}
        loading: set[int] = set()
        steps = []
        for mover in self.movers:
            part = goal.get(mover.worker_id)
            step = None if part is None else _step(self.sizes, mover, part, ready)
            if step is None or not loading.isdisjoint(step.shard_range.layers):
                continue
            steps.append(step)
            if step.kind is DirectiveKind.DROP_SHARD:
                _count(ready, step.shard_range, -1)
            else:
                loading.update(missing.intersection(step.shard_range.layers))
        return steps

    def after(self, steps: Iterable[Step]) -> "Situation":
        """Show the situation when these steps are done."""
        ready = list(self.ready)
        made = {step.worker_id: step for step in steps}
        for step in made.values():
            _count(ready, step.shard_range, 1 if step.kind is DirectiveKind.LOAD_SHARD else -1)
        movers = tuple(_moved(mover, made.get(mover.worker_id)) for mover in self.movers)
        return replace(self, movers=movers, ready=tuple(ready))


def steps_to_coverage(
    sizes: LayerSizes, movers: Iterable[Mover], ready: Sequence[int], uncovered: int
) -> list[Step] | None:
    """Return the steps to order now; None if no way to fewer uncovered Layers was found.

    `ready` counts what all Workers hold, also those that may not be moved; `uncovered` is how
    many Layers stay without any of this.
    """
    ordered = sorted(movers, key=lambda mover: mover.worker_id)
    if len(ordered) > MOST_WORKERS:
        return None
    best = fill_range(sizes, sizes.whole, [mover.candidate for mover in ordered])
    length = sum(map(len, best.values()))
    if sizes.layer_count - length >= uncovered:
        return None
    situation = Situation(sizes, tuple(ordered), tuple(ready))
    return _first_steps(situation, length) or _stand_in(situation, length)


def _first_steps(situation: Situation, length: int) -> list[Step] | None:
    """Give the first steps to the nearest goal that is reached."""
    movers = situation.movers
    goals = {tuple(sorted(goal.items())): goal for goal in _goals(situation, length)}
    ranked = sorted(goals.items(), key=lambda each: (_layers_to_load(movers, each[1]), each[0]))
    for _, goal in ranked[:MOST_TRIALS]:
        steps = situation.steps_to(goal)
        if steps and _arrives(situation, goal, length):
            return steps
    return None


def _stand_in(situation: Situation, length: int) -> list[Step] | None:
    """Let one with empty hands load what another holds, if that one is needed elsewhere first."""
    for empty in (mover for mover in situation.movers if mover.run is None):
        for run in {mover.run: None for mover in situation.movers}:
            if run is None or not _may_hold(situation.sizes, empty.candidate, run):
                continue
            step = Step(empty.worker_id, DirectiveKind.LOAD_SHARD, run)
            if _first_steps(situation.after([step]), length):
                return [step]
    return None


def _may_hold(sizes: LayerSizes, worker: Candidate, run: ShardRange) -> bool:
    fits = sizes.range_bytes(run) <= worker.budget_bytes
    return fits and (run.start == 0 or not worker.starts_at_zero)


def _arrives(situation: Situation, goal: Mapping[WorkerId, ShardRange], length: int) -> bool:
    while sum(map(bool, situation.ready)) < length:
        steps = situation.steps_to(goal)
        if not steps:
            return False
        situation = situation.after(steps)
    return True


def _layers_to_load(movers: Iterable[Mover], goal: Mapping[WorkerId, ShardRange]) -> int:
    runs = {mover.worker_id: mover.run for mover in movers}
    return sum(
        len(part) - len((run.overlap(part) if (run := runs[worker_id]) else None) or ())
        for worker_id, part in goal.items()
    )


def _goals(situation: Situation, length: int) -> Iterator[Placement]:
    for ordered in permutations(situation.movers):
        if not any(mover.candidate.starts_at_zero for mover in ordered[1:]):
            goal = _goal(situation.sizes, ordered, length)
            if goal is not None:
                yield goal


def _goal(sizes: LayerSizes, ordered: Sequence[Mover], length: int) -> Placement | None:
    """Let these Workers meet as near as possible to where they do now; None if they are few."""
    starts = [length]
    for mover in reversed(ordered):
        starts.append(sizes.start_within(starts[-1], 0, mover.candidate.budget_bytes))
    if starts.pop():
        return None
    goal: Placement = {}
    position = 0
    needed = starts[::-1]
    for index, mover in enumerate(ordered):
        upper = ordered[index + 1].run if index + 1 < len(ordered) else None
        limit = sizes.end_within(position, length, mover.candidate.budget_bytes)
        wanted = mover.run.end if mover.run else upper.start if upper else limit
        end = min(max(wanted, needed[index], position), limit)
        if end > position:
            goal[mover.worker_id] = ShardRange(position, end)
            position = end
    return goal


def _step(sizes: LayerSizes, mover: Mover, part: ShardRange, ready: Sequence[int]) -> Step | None:
    """Drop what is outside its part and served by others; failing that, load toward it."""
    run = mover.run
    if run is None:
        return Step(mover.worker_id, DirectiveKind.LOAD_SHARD, part)
    dropped = max((_spare(p, part, ready) for p in run.minus(part)), key=_length, default=None)
    if dropped is not None and (run.overlap(part) or dropped == run):
        return Step(mover.worker_id, DirectiveKind.DROP_SHARD, dropped)
    gained = _gained(sizes, mover.candidate, run, part)
    if gained is not None:
        return Step(mover.worker_id, DirectiveKind.LOAD_SHARD, gained)
    return None if dropped is None else Step(mover.worker_id, DirectiveKind.DROP_SHARD, dropped)


def _length(shard_range: ShardRange | None) -> int:
    return 0 if shard_range is None else len(shard_range)


def _spare(piece: ShardRange, part: ShardRange, ready: Sequence[int]) -> ShardRange | None:
    """Give those Layers, from the end far from the part on, that others are ready to serve."""
    if piece.start < part.start:
        end = next((each for each in piece.layers if ready[each] < 2), piece.end)
        return ShardRange(piece.start, end) if end > piece.start else None
    start = next((each + 1 for each in reversed(piece.layers) if ready[each] < 2), piece.start)
    return ShardRange(start, piece.end) if start < piece.end else None


def _gained(
    sizes: LayerSizes, worker: Candidate, run: ShardRange, part: ShardRange
) -> ShardRange | None:
    """Give what fits beside what it holds, up to its part or inside, on the side with more."""
    above = below = None
    if run.end < part.end:
        end = sizes.end_within(run.start, part.end, worker.budget_bytes)
        above = ShardRange(run.end, end) if end > run.end else None
    if part.start < run.start and not worker.starts_at_zero:
        start = sizes.start_within(run.end, part.start, worker.budget_bytes)
        below = ShardRange(start, run.start) if start < run.start else None
    return max(above, below, key=_length)


def _moved(mover: Mover, step: Step | None) -> Mover:
    if step is None:
        return mover
    if step.kind is DirectiveKind.LOAD_SHARD:
        return replace(mover, run=step.shard_range.union(mover.run or step.shard_range))
    left = mover.run.minus(step.shard_range) if mover.run else ()
    return replace(mover, run=left[0] if left else None)


def _count(ready: list[int], shard_range: ShardRange, change: int) -> None:
    for layer in shard_range.layers:
        ready[layer] += change
