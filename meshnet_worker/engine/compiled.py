"""Decode Steps compiled with Inductor, in the background, and kept only where they gain.

A pass over a run of Layers is traced once per Batch width with its operators left opaque (see
`opaque`), and compiled ahead of time by a forked child at a low priority: it sees the weights
without a copy, and Batches run uncompiled meanwhile. The result is tried beside the uncompiled pass
on real Batches, and adopted if it computes the same and is faster. Nothing here can fail a Batch:
whatever goes wrong, the uncompiled pass goes on. What becomes of each width is told once.
"""

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import mkdtemp

import torch

from meshnet_common.shard_range import ShardRange
from meshnet_worker.engine.children import Child, run_in_child
from meshnet_worker.engine.step_package import PackagedPass, Passes, Step, make_package, padded
from meshnet_worker.engine_port import Noted

WARM_PASSES = 200
"""Uncompiled passes of a width before it is worth 20 seconds of compiling."""
TRIALS = 8
LEAST_GAIN = 1.1
TOLERANCES = {torch.float32: 1e-4, torch.bfloat16: 0.03}
"""Largest difference to the uncompiled pass, each row's norm relative to its own."""

Fact = str | int | float


@dataclass(slots=True)
class _Counting:
    passes: int = 0


@dataclass(slots=True)
class _Building:
    child: Child
    package: Path

    def clear_up(self) -> None:
        """Take the package away: what was loaded of it stays loaded."""
        shutil.rmtree(self.package.parent, ignore_errors=True)


@dataclass(slots=True)
class _Trying:
    """Passes are compared by their fastest: what others do on these cores only slows some."""

    compiled: PackagedPass
    plain_seconds: list[float] = field(default_factory=list)
    compiled_seconds: list[float] = field(default_factory=list)

    @property
    def is_plains_turn(self) -> bool:
        return len(self.plain_seconds) == len(self.compiled_seconds)

    @property
    def gain(self) -> float:
        return min(self.plain_seconds) / min(self.compiled_seconds)

    def facts(self) -> dict[str, Fact]:
        return {
            "gain": round(self.gain, 3),
            "plain_ms": round(1000 * min(self.plain_seconds), 2),
            "compiled_ms": round(1000 * min(self.compiled_seconds), 2),
        }


@dataclass(frozen=True, slots=True)
class _Adopted:
    compiled: PackagedPass


@dataclass(frozen=True, slots=True)
class _GivenUp:
    pass


_State = _Counting | _Building | _Trying | _Adopted | _GivenUp
_Key = tuple[ShardRange, int, bool]


class DecodeCompiler:
    """The compiled passes of one Shard."""

    def __init__(
        self,
        passes: Passes,
        note: Callable[[Noted], None],
        now: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._passes = passes
        self._note = note
        self._now = now
        self._states: dict[_Key, _State] = {}

    def run(self, step: Step, plain: Callable[[], torch.Tensor]) -> tuple[torch.Tensor, bool]:
        """Run a step, compiled where that has proved itself; says whether it was."""
        width = step.width
        if width is None:
            return plain(), False
        key = (step.shard_range, width, step.is_sampled)
        match self._states.get(key):
            case _Adopted(compiled=compiled):
                return self._run_adopted(key, compiled, step, plain)
            case _Trying() as trying:
                return self._try(key, trying, step, plain), False
            case None:
                self._states[key] = _Counting()
            case _Counting() as counting:
                self._count(key, counting, step)
            case _Building() | _GivenUp():
                self.look_after_builds()
        return plain(), False

    def forget(self) -> None:
        """Let go of every compiled pass, such as when Layers are dropped."""
        for state in self._states.values():
            if isinstance(state, _Building):
                state.child.kill()
                state.clear_up()
        self._states.clear()

    def lifelines(self) -> list[int]:
        """Descriptors that become readable when there is a build to look after."""
        states = self._states.values()
        return [state.child.lifeline for state in states if isinstance(state, _Building)]

    def look_after_builds(self) -> bool:
        """Take what has been built; returns whether a child is still building."""
        for key, state in self._states.items():
            if not isinstance(state, _Building):
                continue
            if state.child.is_running():
                return True
            self._take(key, state)
            state.clear_up()
        return False

    def _count(self, key: _Key, counting: _Counting, step: Step) -> None:
        counting.passes += 1
        # Also those of a width that nobody uses any more.
        is_busy = self.look_after_builds()
        if counting.passes >= WARM_PASSES and not is_busy:
            self._build(key, step)

    def _build(self, key: _Key, step: Step) -> None:
        run, weights = self._passes.over(step.shard_range), self._passes.weights()
        example = padded(step)
        try:
            package = Path(mkdtemp(prefix="meshnet-compiled-")) / "pass.pt2"
        except OSError as error:
            self._give_up(key, f"no folder for its code: {error}")
            return
        try:
            child = run_in_child(
                lambda: make_package(run, weights, example, package), package.with_name("words")
            )
            why_not = "this system cannot fork"
        except OSError as error:
            child, why_not = None, f"no child to compile it: {error}"
        if child is None:
            shutil.rmtree(package.parent, ignore_errors=True)
            self._give_up(key, why_not)
            return
        self._states[key] = _Building(child, package)

    def _take(self, key: _Key, built: _Building) -> None:
        try:
            self._states[key] = _Trying(PackagedPass(built.package, self._passes.weights()))
        except Exception as error:  # noqa: BLE001 - no package, or one that does not load
            is_there = built.package.exists()
            why = f"it does not load: {error!r}" if is_there else built.child.last_words()
            self._give_up(key, why if is_there else f"it was not built: {why}")

    def _give_up(self, key: _Key, reason: str, **facts: Fact) -> None:
        self._states[key] = _GivenUp()
        self._tell("decode steps stay uncompiled", key, reason=reason, **facts)

    def _tell(self, event: str, key: _Key, **facts: Fact) -> None:
        shard_range, width, _ = key
        self._note(Noted(event, {"layers": str(shard_range), "width": width, **facts}))

    def _run_adopted(
        self,
        key: _Key,
        compiled: PackagedPass,
        step: Step,
        plain: Callable[[], torch.Tensor],
    ) -> tuple[torch.Tensor, bool]:
        try:
            return compiled(step), True
        except Exception as error:  # noqa: BLE001 - also what the plain pass refuses: let it say so
            output = plain()
            self._give_up(key, f"it failed after all: {error!r}")
            return output, False

    def _try(
        self, key: _Key, trying: _Trying, step: Step, plain: Callable[[], torch.Tensor]
    ) -> torch.Tensor:
        # Turn by turn, each as the first pass of a step: a second finds all in the caches.
        if trying.is_plains_turn:
            started = self._now()
            right = plain()
            trying.plain_seconds.append(self._now() - started)
            return right
        started = self._now()
        try:
            # A pass writes KV, and the plain one writes the same again.
            output = trying.compiled(step)
        except Exception as error:  # noqa: BLE001 - compiled code may do anything: go on without
            self._give_up(key, f"it failed: {error!r}")
            return plain()
        seconds = self._now() - started
        right = plain()
        if not bool(right.isfinite().all()):
            # A Session's own fault tells nothing about the compiled pass.
            return right
        trying.compiled_seconds.append(seconds)
        difference = row_difference(output, right)
        # Not "greater": a difference that is not a number is wrong as well.
        if not difference <= TOLERANCES[self._passes.dtype]:
            self._give_up(key, f"it computes something else: {difference:.2g} of a row's norm")
        elif len(trying.compiled_seconds) == TRIALS:
            self._judge(key, trying)
        return right

    def _judge(self, key: _Key, trying: _Trying) -> None:
        if trying.gain < LEAST_GAIN:
            self._give_up(key, "it gains too little", **trying.facts())
            return
        self._states[key] = _Adopted(trying.compiled)
        self._tell("decode steps compiled", key, **trying.facts())


def row_difference(output: torch.Tensor, right: torch.Tensor) -> float:
    """The largest difference of a row, as a share of the row's own norm."""
    difference = (output.float() - right.float()).norm(dim=-1)
    # An empty row's share of nothing is nothing.
    return float(difference.div(right.float().norm(dim=-1)).where(difference != 0, 0.0).max())
