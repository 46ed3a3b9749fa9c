"""Who loads what, so that a Variant with missing Layers is covered soonest.

A `Helper` loads so many Layers at the speed of its line, after a delay. One with a run goes on at
an end of it; one without takes Layers anywhere, but in one run. A run may also be given back, if
its Worker is of much more use elsewhere. For a time that is tried out, each gap is taken from its
ends by whoever lies beside it, and what is left by Workers without a run; the shortest time in
which that covers everything is searched.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import ceil, floor, inf

from meshnet_common.ids import WorkerId
from meshnet_common.shard_range import ShardRange

NEAR = 1.05
NEAR_SECONDS = 0.5
"""A time that is so near the shortest is good enough, if fewer Workers reach it."""
ROUNDS = 24
MUCH = 0.8
MUCH_SECONDS = 5.0
"""A run is given back only for a time that is shorter by so much."""

NEAR_RELEASE = 0.9
FEW = 6
"""Of so many runs every choice is looked at,"""
SOME = 16
"""and of so many every pair."""

Loads = dict[WorkerId, list[ShardRange]]


@dataclass(frozen=True, slots=True)
class Helper:
    """A Worker that can load `layers` more beside its run, or so many anywhere if it has none.

    The `released` are what it could do if it gave its run back; 0: it may not. What is `coming` it
    loads already, from its run on, until its delay ends.
    """

    worker_id: WorkerId
    layers: int
    layers_per_second: float
    delay_seconds: float = 0.0
    run: ShardRange | None = None
    from_zero: bool = False
    released_layers: int = 0
    released_seconds: float = 0.0
    coming: ShardRange | None = None

    def run_at(self, seconds: float) -> ShardRange | None:
        """Say what it has by then of its run and of what it loads already."""
        coming, run = self.coming, self.run
        if coming is None:
            return run
        left = max(0.0, self.delay_seconds - seconds) * self.layers_per_second
        count = len(coming) - min(len(coming), ceil(left - 1e-9))
        if not count:
            return run
        if run is None:
            return ShardRange(coming.start, coming.start + count)
        if run.start == coming.end:
            return ShardRange(coming.end - count, run.end)
        return ShardRange(run.start, coming.start + count)

    def loaded(self, seconds: float) -> int:
        """Count the whole Layers that it has by then."""
        if seconds == inf:
            return self.layers
        turn = max(0.0, seconds - self.delay_seconds)
        return min(self.layers, floor(turn * self.layers_per_second + 1e-9))

    def without_run(self) -> "Helper":
        return replace(
            self,
            run=None,
            layers=self.released_layers,
            delay_seconds=self.released_seconds,
            released_layers=0,
        )


@dataclass(frozen=True, slots=True)
class Way:
    """What each Worker loads, and after how many seconds all of it is there."""

    seconds: float
    loads: Mapping[WorkerId, Sequence[ShardRange]]
    released: frozenset[WorkerId]


def soonest(helpers: Iterable[Helper], layer_count: int) -> Way | None:
    """Find the soonest way to all Layers; None if none is found."""
    pool = sorted(helpers, key=lambda each: (each.worker_id, each.run or ShardRange(0, 1)))
    chosen = _with_releases(pool, layer_count)
    seconds = _shortest(chosen, layer_count)
    if seconds == inf:
        chosen = _kept_one_by_one(pool, layer_count)
        seconds = _shortest(chosen, layer_count)
    if seconds == inf:
        return None
    loads = _arranged(chosen, layer_count, seconds * NEAR + NEAR_SECONDS)
    if loads is None:
        loads = _arranged(chosen, layer_count, seconds)
    assert loads is not None
    without = {each.worker_id for each in chosen if each.run is None and each.coming is None}
    had = {each.worker_id for each in pool if each.run is not None}
    return Way(seconds, loads, frozenset(without & had))


def _with_releases(pool: Sequence[Helper], layer_count: int) -> Sequence[Helper]:
    """Give back the runs that it helps much to give back."""
    best, seconds = pool, _shortest(pool, layer_count)
    limit = seconds * MUCH - MUCH_SECONDS
    for other in _releases(pool):
        if limit <= 0:
            break
        if _arranged(other, layer_count, limit) is not None:
            best, seconds = other, _shortest(other, layer_count)
            limit = seconds * NEAR_RELEASE - NEAR_SECONDS
    return best


def _kept_one_by_one(pool: Sequence[Helper], layer_count: int) -> Sequence[Helper]:
    """Give back all runs, then keep again those without which it takes as long."""
    chosen = [each.without_run() if each.released_layers else each for each in pool]
    seconds = _shortest(chosen, layer_count)
    if seconds == inf:
        return chosen
    order = sorted(range(len(pool)), key=lambda index: (-len(pool[index].run or ()), index))
    for index in order:
        if chosen[index] != pool[index]:
            kept = [*chosen[:index], pool[index], *chosen[index + 1 :]]
            time = _shortest(kept, layer_count)
            if time <= seconds:
                chosen, seconds = kept, time
    return chosen


def _releases(pool: Sequence[Helper]) -> Iterator[list[Helper]]:
    """Yield what there is with some runs given back, few first."""
    able = [index for index, each in enumerate(pool) if each.run and each.released_layers]
    most = len(able) if len(able) <= FEW else 2 if len(able) <= SOME else 1
    for count in range(1, most + 1):
        for chosen in combinations(able, count):
            yield [
                each.without_run() if index in chosen else each for index, each in enumerate(pool)
            ]


def _shortest(pool: Sequence[Helper], layer_count: int) -> float:
    """Search for the time after which all Layers are there; infinite if they never are."""
    if _arranged(pool, layer_count, inf) is None:
        return inf
    low, high = (
        0.0,
        max((e.delay_seconds + e.layers / e.layers_per_second for e in pool), default=0),
    )
    if _arranged(pool, layer_count, 0.0) is not None:
        return 0.0
    for _ in range(ROUNDS):
        middle = (low + high) / 2
        if _arranged(pool, layer_count, middle) is None:
            low = middle
        else:
            high = middle
        if high - low < 0.05:
            break
    return high


def _arranged(pool: Sequence[Helper], layer_count: int, seconds: float) -> Loads | None:
    loads, missing = _spread(pool, layer_count, seconds)
    return None if missing else loads


def _spread(pool: Sequence[Helper], layer_count: int, seconds: float) -> tuple[Loads, int]:
    """Say what each loads in this time, and how many Layers are left over."""
    left = {each.worker_id: each.loaded(seconds) for each in pool}
    runs = [(each, run) for each in pool if (run := each.run_at(seconds)) is not None]
    loads: Loads = {}
    rests: list[tuple[int, int]] = []
    for start, end in _gaps([run for _, run in runs], layer_count):
        low = [each.worker_id for each, run in runs if run.end == start]
        high = [h.worker_id for h, run in runs if run.start == end and not h.from_zero]
        first, last = start, end
        if low and (name := max(low, key=lambda each: (left[each], each))) and left[name]:
            first = min(end, start + left[name])
            left[name] -= first - start
            loads.setdefault(name, []).append(ShardRange(start, first))
        if high and first < end and (name := max(high, key=lambda e: (left[e], e))) and left[name]:
            last = max(first, end - left[name])
            left[name] -= end - last
            loads.setdefault(name, []).append(ShardRange(last, end))
        if first < last:
            rests.append((first, last))
    free = [e for e in pool if e.run is None and e.coming is None and left[e.worker_id]]
    return loads, _taken_anywhere(free, left, rests, loads)


def _taken_anywhere(
    free: list[Helper], left: Mapping[WorkerId, int], rests: Iterable[tuple[int, int]], loads: Loads
) -> int:
    """Give what is left, the longest first, to Workers without a run; count what none takes."""
    missing = 0
    for start, end in sorted(rests, key=lambda rest: (rest[0] - rest[1], rest)):
        position = start
        while position < end:
            able = [each for each in free if not (each.from_zero and position)]
            if not able:
                missing += end - position
                break
            sizes = {each.worker_id: left[each.worker_id] for each in able}
            enough = [(size, name) for name, size in sizes.items() if size >= end - position]
            # The least that is enough, else the most.
            size, taker = min(enough) if enough else max((n, name) for name, n in sizes.items())
            free = [each for each in free if each.worker_id != taker]
            until = min(end, position + size)
            loads[taker] = [ShardRange(position, until)]
            position = until
    return missing


def _gaps(runs: Collection[ShardRange], layer_count: int) -> list[tuple[int, int]]:
    gaps, position = [], 0
    for run in sorted(runs):
        if run.start > position:
            gaps.append((position, run.start))
        position = max(position, run.end)
    if position < layer_count:
        gaps.append((position, layer_count))
    return gaps
