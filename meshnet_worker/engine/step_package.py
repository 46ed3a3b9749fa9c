"""A Decode Step as a package of compiled code, made ahead of time and run without Python.

A pass is traced with its operators left opaque (see `opaque`) and its weights as inputs, so that a
package holds code alone. It is traced for one width: a narrower Batch is filled up with rows that
belong to nobody.
"""

import os
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

from meshnet_common.shard_range import ShardRange
from meshnet_worker.engine import opaque
from meshnet_worker.engine.attention import FlatSegment

PACKAGED_NAME = "model"
WIDTHS = (1, 2, 4, 8, 16)
"""Rows of a compiled pass; a Batch takes the next wider one."""
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


class PackagedPass:
    """A package that was loaded: it runs without Python, but for the opaque operators."""

    def __init__(self, package: Path, weights: dict[str, torch.Tensor]) -> None:
        names = package.with_suffix(".names").read_text().splitlines()
        self._weights = [weights[name] for name in names]
        self._loader = torch._C._aoti.AOTIModelPackageLoader(  # noqa: SLF001 - torch's
            str(package), PACKAGED_NAME, False, 1, -1
        )

    def __call__(self, step: Step) -> torch.Tensor:
        given = [tensor for tensor in padded(step) if tensor is not None]
        with opaque.passing(step.segments):
            output: torch.Tensor = self._loader.boxed_run([*given, *self._weights])[0]
        return output[: len(step.segments)]


Example = tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]


def padded(step: Step) -> Example:
    """Rows, positions and sampled rows of a step, filled up to its width."""
    assert step.width is not None
    missing = step.width - len(step.segments)
    places = [segment.position for segment in step.segments] + [0] * missing
    rows = functional.pad(step.rows, (0, 0) * (step.rows.dim() - 1) + (0, missing))
    sampled = torch.arange(step.width) if step.is_sampled else None
    return rows, torch.tensor(places), sampled


def make_package(
    run: RawPass, weights: dict[str, torch.Tensor], example: Example, package: Path
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
