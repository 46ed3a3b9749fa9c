"""How much uncovered time churn forces on any planner: the bound beside what was measured.

Both are in seconds, each model weighted by its demand. A model is uncovered while a Layer of it is
ready on no Worker that is alive and not draining, whether the Tracker knows yet or not. Such time
is *forced*, and counts for the bound, in two cases only.

1. **Too little room.** The Layers of the models that are covered, and of the uncovered ones that
   are asked for more, leave too little of the live Workers' capacity for this one. (A model that is
   covered is never given up for another: a plan may not open a gap.) Whatever the Mesh chose, at
   least the demand that no choice of models has room for is forced.
2. **A reload that could not be avoided.** A gap opens when a Worker goes, or room for a model
   appears when one comes. If a Worker went although all Layers could have been on two Workers each
   by then, the gap could have been avoided and nothing of it is forced. (A planner cannot know who
   goes: a placement avoids a gap if it survives whoever goes.) They could if two chains of every
   model fit the Workers there were, and an ideal Mesh had loaded so much: one that has been loading
   second copies over every line there is, ever since they fitted. Otherwise the time until the loss
   can be known is forced, and after it the fastest reload that there is: the missing Layers spread
   over all lines at once, whole Layers each, most wanted model first. A Worker helps with what it
   has room for beside the Layers that nobody else holds; those of an uncovered model that is asked
   for less are in nobody's way. As it holds one run of a model, those help
   that hold nothing of it, and at each end of a gap the one with the fastest line whose run ends
   there; who holds other Layers of it helps only if their room is too small. `REACTION_SECONDS` is
   for telling the Worker and for the first probe of what it loaded.

The reload goes on from what the ideal Mesh has done when other Workers come or go meanwhile. No
planner's pauses, no drains and no moves are in the bound. What is forced is never more than what
was measured, moment by moment, so that luck in one gap does not pay for another.
"""

import math
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from bench.placement.churn_reload import (
    Live,
    helping_lines,
    missing_layers,
    most_covered,
    reload_seconds,
    two_chains_fit,
)
from bench.placement.churn_traces import Machine, Model

REACTION_SECONDS = 1.0
MOST_GAPS = 200


@dataclass(slots=True)
class Reload:
    """What the fastest reload of one model has still to load, and when it can begin and be done."""

    missing: int
    begins_at: float
    ends_at: float = 0.0

    def go_on(self, now: float) -> float:
        """Count what is loaded by now as done; answers for how long it was being loaded."""
        seconds = now - self.begins_at
        if seconds <= 0:
            return 0.0
        whole = self.ends_at - self.begins_at
        left = max(0.0, 1 - seconds / whole) if whole > 0 else 0.0
        self.missing = math.ceil(left * self.missing)
        self.begins_at = now
        return min(seconds, whole)


class Cause(StrEnum):
    """How a gap came about, which says what its excess is due to."""

    START = "start"
    """Nobody held anything yet."""
    ROOM = "room"
    """There was no room when it opened."""
    LOSS = "loss"
    """A Worker went before second copies could be there."""
    AVOIDABLE = "avoidable"
    """A Worker went, and second copies could have been there."""


@dataclass(slots=True)
class Gap:
    """A time in which one model was uncovered."""

    model: str
    cause: Cause
    since: float
    until: float
    forced_seconds: float
    """How much of it was forced."""


@dataclass
class Ledger:
    """Adds up uncovered and forced time while a trace goes on."""

    models: Sequence[Model]
    now: float = 0.0
    uncovered_seconds: float = 0.0
    forced_seconds: float = 0.0
    missing: dict[str, int] = field(default_factory=dict)
    """How many Layers of each model are ready nowhere."""
    no_room: dict[str, bool] = field(default_factory=dict)
    reloads: dict[str, Reload] = field(default_factory=dict)
    copies: dict[str, float] = field(default_factory=dict)
    """Layers that the ideal Mesh has loaded on each Worker, of first and second copies."""
    machines: dict[str, Machine] = field(default_factory=dict)
    least_uncovered: float = 1.0
    """The share of the demand that no placement has room for."""
    gaps: deque[Gap] = field(default_factory=lambda: deque(maxlen=MOST_GAPS))
    """The latest, the one that is open now last of its model."""

    def __post_init__(self) -> None:
        self.by_demand = sorted(self.models, key=lambda model: (-model.weight, model.name))
        self.weights = sum(model.weight for model in self.models)
        self.missing = {model.name: model.layers for model in self.models}
        self.no_room = {model.name: True for model in self.models}

    def advance(self, now: float) -> None:
        """Let time pass while nothing changes."""
        seconds = now - self.now
        uncovered = forced = 0.0
        for model in self.models:
            if seconds > 0 and self.missing[model.name]:
                share = model.weight / self.weights
                own = self._forced(model.name, now)
                uncovered += share * seconds
                forced += share * own
                self._note(model.name, now, own)
        self.uncovered_seconds += uncovered
        self.forced_seconds += max(forced, min(uncovered, self.least_uncovered * seconds))
        self._load_copies(seconds)
        self.now = now

    def changed(self, live: Collection[Live]) -> None:
        """Take in what is ready now."""
        for name, layers in missing_layers(self.models, live).items():
            self.missing[name] = len(layers)
            if not layers:
                self.reloads.pop(name, None)

    def joined(self, live: Collection[Live]) -> None:
        """Take in that a Worker came."""
        for each in live:
            self.machines[each.machine.name] = each.machine
            self.copies.setdefault(each.machine.name, 0.0)
        for reload in self.reloads.values():
            reload.go_on(self.now)
        self._judge(live, self.now)

    def went(self, name: str, live: Collection[Live], known_at: float) -> None:
        """Take in that a Worker is gone, which cannot be known before `known_at`."""
        safe = self._had_two_copies()
        missing = missing_layers(self.models, live)
        speed = self.machines.pop(name).layers_per_second
        self.copies.pop(name)
        for model, layers in missing.items():
            lost = 0 if safe else len(layers) - self.missing.get(model, 0)
            reload = self.reloads.setdefault(model, Reload(0, self.now, self.now))
            lost = max(lost, math.floor(speed * reload.go_on(self.now)))
            if lost:
                reload.missing = min(len(layers), reload.missing + lost)
                reload.begins_at = max(reload.begins_at, known_at)
        self._judge(live, known_at)

    def _note(self, model: str, now: float, forced: float) -> None:
        for gap in reversed(self.gaps):
            if gap.model == model:
                if gap.until == self.now:
                    gap.until = now
                    gap.forced_seconds += forced
                    return
                break
        self.gaps.append(Gap(model, self._cause(model), self.now, now, forced))

    def _cause(self, model: str) -> Cause:
        if self.no_room[model]:
            return Cause.ROOM
        if self.now == 0:
            return Cause.START
        reload = self.reloads.get(model)
        return Cause.LOSS if reload and reload.missing else Cause.AVOIDABLE

    def _forced(self, model: str, until: float) -> float:
        if self.no_room[model]:
            return until - self.now
        reload = self.reloads.get(model)
        return max(0.0, min(until, reload.ends_at) - self.now) if reload else 0.0

    def _had_two_copies(self) -> bool:
        loaded = sum(self.copies.values())
        capacities = [machine.capacity for machine in self.machines.values()]
        return loaded >= 2 * sum(each.layers for each in self.models) - 1e-6 and two_chains_fit(
            capacities, [each.layers for each in self.models]
        )

    def _load_copies(self, seconds: float) -> None:
        """Let the ideal Mesh load on, until there are two copies or no room."""
        wanted = 2 * sum(model.layers for model in self.models) - sum(self.copies.values())
        whole = sum(model.layers for model in self.models)
        gains = {
            name: min(
                machine.layers_per_second * seconds,
                min(machine.capacity, whole) - self.copies[name],
            )
            for name, machine in self.machines.items()
        }
        total = sum(gains.values())
        if total > 0:
            share = min(1.0, max(0.0, wanted) / total)
            for name, gain in gains.items():
                self.copies[name] += share * gain

    def _judge(self, live: Collection[Live], begins_at: float) -> None:
        """Say for each model whether there is room, and how long its reload is forced to take."""
        missing = missing_layers(self.models, live)
        capacity = sum(each.machine.capacity for each in live)
        self.least_uncovered = 1 - most_covered(self.models, capacity) / self.weights
        capacity -= sum(model.layers for model in self.models if not missing[model.name])
        waiting: list[str] = []
        for model in self.by_demand:
            name = model.name
            had_no_room, self.no_room[name] = self.no_room[name], False
            if not missing[name]:
                continue
            if capacity < model.layers:
                self.no_room[name] = True
                self.reloads.pop(name, None)
                continue
            capacity -= model.layers
            if had_no_room:
                self.reloads[name] = Reload(len(missing[name]), begins_at)
            if name in self.reloads:
                waiting.append(name)
        self.changed(live)
        self._schedule(waiting, live, missing)

    def _schedule(
        self,
        waiting: Sequence[str],
        live: Collection[Live],
        missing: Mapping[str, Collection[int]],
    ) -> None:
        """Say when each reload can be done, the most wanted first, over the same lines."""
        taken = 0
        for name in waiting:
            reload = self.reloads[name]
            taken += reload.missing
            # What serves nobody and is asked for less can be given up for it.
            less = self.by_demand[[each.name for each in self.by_demand].index(name) + 1 :]
            given_up = {each.name for each in less if missing[each.name]}
            lines = helping_lines(live, name, missing[name], taken, given_up)
            reload.ends_at = reload.begins_at
            if reload.missing:
                reload.ends_at += REACTION_SECONDS + reload_seconds(taken, lines)
