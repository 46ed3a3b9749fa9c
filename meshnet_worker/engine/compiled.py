"""Decode Steps compiled with Inductor, in the background, and kept only where they gain.

A pass over a run of Layers is traced once per Batch width with its operators left opaque (see
`opaque`), and compiled ahead of time by a forked child at a low priority: it sees the weights
without a copy, and Batches run uncompiled meanwhile. The result is tried beside the uncompiled pass
on real Batches, and adopted if it computes the same and is faster. Nothing here can fail a Batch:
whatever goes wrong, the uncompiled pass goes on.
"""

import os
import shutil
import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import torch
from torch.nn import functional

from meshnet_common.shard_range import ShardRange
from meshnet_worker.engine import opaque
from meshnet_worker.engine.attention import FlatSegment
from meshnet_worker.engine.children import Child, run_in_child

WARM_PASSES = 200
"""Uncompiled passes of a width before it is worth 20 seconds of compiling."""
PACKAGED_NAME = "model"
WIDTHS = (1, 2, 4, 8, 16)
"""Rows of a compiled pass; a Batch takes the next wider one."""
TRIALS = 8
LEAST_GAIN = 1.1
TOLERANCES = {torch.float32: 1e-4, torch.bfloat16: 0.03}
"""Largest difference to the uncompiled pass, each row's norm relative to its own."""
MOST_CONSTANT_BYTES = 1 << 20
"""What a package may hold beside code: tables, but never weights."""

RawPass = Callable[[torch.Tensor, torch.Tensor, torch.Tensor | None], torch.Tensor]
"""Rows, their positions and the sampled rows in; hidden states or logits out."""


@dataclass(frozen=True, slots=True)
class Passes:
    """What is compiled: the uncompiled pass over a range, and the weights that it reads."""

    over: Callable[[ShardRange], RawPass]
    weights: Callable[[], dict[str, torch.Tensor]]
    dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class Step:
    """A Decode Step: one row per Session, all of them sampled or none."""

    shard_range: ShardRange
    rows: torch.Tensor
    segments: Sequence[FlatSegment]
    is_sampled: bool

    @property
    def width(self) -> int | None:
        return next((width for width in WIDTHS if width >= len(self.segments)), None)


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
    compiled: "_CompiledPass"
    plain_seconds: list[float] = field(default_factory=list)
    compiled_seconds: list[float] = field(default_factory=list)

    @property
    def gain(self) -> float:
        # The first run of a compiled pass also places its constants.
        return statistics.median(self.plain_seconds[1:]) / statistics.median(
            self.compiled_seconds[1:]
        )


@dataclass(frozen=True, slots=True)
class _Adopted:
    compiled: "_CompiledPass"


@dataclass(frozen=True, slots=True)
class _GivenUp:
    pass


_State = _Counting | _Building | _Trying | _Adopted | _GivenUp
_Key = tuple[ShardRange, int, bool]


class DecodeCompiler:
    """The compiled passes of one Shard."""

    def __init__(self, passes: Passes) -> None:
        self._passes = passes
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
                self._look_after_builds()
        return plain(), False

    def forget(self) -> None:
        """Let go of every compiled pass, such as when Layers are dropped."""
        for state in self._states.values():
            if isinstance(state, _Building):
                state.child.kill()
                state.clear_up()
        self._states.clear()

    def _count(self, key: _Key, counting: _Counting, step: Step) -> None:
        counting.passes += 1
        # Also those of a width that nobody uses any more.
        is_busy = self._look_after_builds()
        if counting.passes >= WARM_PASSES and not is_busy:
            self._states[key] = self._build(step)

    def _build(self, step: Step) -> _Building | _GivenUp:
        run, weights = self._passes.over(step.shard_range), self._passes.weights()
        example = _padded(step)
        try:
            package = Path(mkdtemp(prefix="meshnet-compiled-")) / "pass.pt2"
        except OSError:
            return _GivenUp()
        try:
            child = run_in_child(lambda: _compile(run, weights, example, package))
        except OSError:
            child = None
        if child is None:
            shutil.rmtree(package.parent, ignore_errors=True)
            return _GivenUp()
        return _Building(child, package)

    def _look_after_builds(self) -> bool:
        """Take what has been built; returns whether a child is still building."""
        for key, state in self._states.items():
            if not isinstance(state, _Building):
                continue
            if state.child.is_running():
                return True
            self._states[key] = self._loaded(state.package)
            state.clear_up()
        return False

    def _loaded(self, package: Path) -> _Trying | _GivenUp:
        try:
            return _Trying(_CompiledPass(package, self._passes.weights()))
        except Exception:  # noqa: BLE001 - no package, or one that does not load: go on without
            return _GivenUp()

    def _run_adopted(
        self,
        key: _Key,
        compiled: "_CompiledPass",
        step: Step,
        plain: Callable[[], torch.Tensor],
    ) -> tuple[torch.Tensor, bool]:
        try:
            return compiled(step), True
        except Exception:  # noqa: BLE001 - also a segment that the plain pass refuses: let it say so
            output = plain()
            self._states[key] = _GivenUp()
            return output, False

    def _try(
        self, key: _Key, trying: _Trying, step: Step, plain: Callable[[], torch.Tensor]
    ) -> torch.Tensor:
        started = time.perf_counter()
        try:
            # A pass writes KV, and the plain one writes the same again.
            output = trying.compiled(step)
        except Exception:  # noqa: BLE001 - compiled code may do anything: go on without
            self._states[key] = _GivenUp()
            return plain()
        between = time.perf_counter()
        right = plain()
        if not bool(right.isfinite().all()):
            # A Session's own fault tells nothing about the compiled pass.
            return right
        trying.compiled_seconds.append(between - started)
        trying.plain_seconds.append(time.perf_counter() - between)
        if not _is_close(output, right, self._passes.dtype):
            self._states[key] = _GivenUp()
        elif len(trying.plain_seconds) == TRIALS:
            is_worth_it = trying.gain >= LEAST_GAIN
            self._states[key] = _Adopted(trying.compiled) if is_worth_it else _GivenUp()
        return right


class _CompiledPass:
    """A package that was loaded: it runs without Python, but for the opaque operators."""

    def __init__(self, package: Path, weights: dict[str, torch.Tensor]) -> None:
        names = package.with_suffix(".names").read_text().splitlines()
        self._weights = [weights[name] for name in names]
        self._loader = torch._C._aoti.AOTIModelPackageLoader(  # noqa: SLF001 - torch's
            str(package), PACKAGED_NAME, False, 1, -1
        )

    def __call__(self, step: Step) -> torch.Tensor:
        given = [tensor for tensor in _padded(step) if tensor is not None]
        with opaque.passing(step.segments):
            output: torch.Tensor = self._loader.boxed_run([*given, *self._weights])[0]
        return output[: len(step.segments)]


_Example = tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]


def _padded(step: Step) -> _Example:
    """Rows, positions and sampled rows of a step, filled up to its width."""
    assert step.width is not None
    missing = step.width - len(step.segments)
    places = [segment.position for segment in step.segments] + [0] * missing
    rows = functional.pad(step.rows, (0, 0) * (step.rows.dim() - 1) + (0, missing))
    sampled = torch.arange(step.width) if step.is_sampled else None
    return rows, torch.tensor(places), sampled


def _compile(
    run: RawPass, weights: dict[str, torch.Tensor], example: _Example, package: Path
) -> None:
    """Trace and compile a pass into a package; this runs in a child process."""
    import torch._inductor as inductor
    from torch._inductor.package.package import package_aoti
    from torch.fx.experimental.proxy_tensor import make_fx

    # What its compiler warns of is nobody's business, and must not end it.
    warnings.simplefilter("ignore")
    # What lies in a folder that others may write to could be their code.
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(package.parent)
    given = [tensor.clone() for tensor in example if tensor is not None]

    def traced(*tensors: torch.Tensor) -> tuple[torch.Tensor]:
        rows, positions, *sampled = tensors
        return (run(rows, positions, sampled[0] if sampled else None),)

    with torch.no_grad(), opaque.tracing():
        graph: Any = make_fx(traced, tracing_mode="fake", _allow_non_fake_inputs=True)(*given)
    names = _lift_weights(graph, weights)
    given += [weights[name] for name in names]
    options = {
        "aot_inductor.package": True,
        "compile_threads": 1,
        # 400 MB on disk, for one compilation.
        "cpp_cache_precompile_headers": False,
    }
    files: Any = inductor.aot_compile(graph, tuple(given), options=options)
    package.with_suffix(".names").write_text("\n".join(names))
    package_aoti(str(package), {PACKAGED_NAME: files})


def _lift_weights(graph: Any, weights: dict[str, torch.Tensor]) -> list[str]:
    """Make the weights that a traced pass reads its last inputs; returns their names in order."""
    names = {(tensor.data_ptr(), tensor.shape): name for name, tensor in weights.items()}
    last = [node for node in graph.graph.nodes if node.op == "placeholder"][-1]
    lifted: dict[str, Any] = {}
    for node in [node for node in graph.graph.nodes if node.op == "get_attr"]:
        tensor = getattr(graph, node.target)
        name = names.get((tensor.data_ptr(), tensor.shape))
        if name is None:
            continue
        if name not in lifted:
            with graph.graph.inserting_after(last):
                last = lifted[name] = graph.graph.placeholder(f"weight_{len(lifted)}")
            last.meta = dict(node.meta)
        node.replace_all_uses_with(lifted[name])
        graph.graph.erase_node(node)
    graph.recompile()
    constants = [getattr(graph, n.target) for n in graph.graph.nodes if n.op == "get_attr"]
    if sum(tensor.nbytes for tensor in constants) > MOST_CONSTANT_BYTES:
        raise ValueError("the traced pass reads weights that have no name")
    return list(lifted)


def _is_close(output: torch.Tensor, right: torch.Tensor, dtype: torch.dtype) -> bool:
    tolerance = TOLERANCES[dtype]
    difference = (output.float() - right.float()).norm(dim=-1)
    # Not "greater": a difference that is not a number is wrong as well.
    return bool((difference <= tolerance * right.float().norm(dim=-1)).all())
