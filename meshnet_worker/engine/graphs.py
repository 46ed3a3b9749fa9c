"""Decode Steps replayed as CUDA graphs: one launch in place of some hundred for every Layer.

A Batch of Decode Steps is filled up to a fixed size (see `padding`), its numbers are written into
tensors that stay where they are (see `fixed`), and what was captured over them is replayed. Each
graph is captured over rows of nobody, and used once it has computed the same as the plain pass on
real Batches. Nothing here can fail a Batch: at the first fault the plain pass goes on alone.

What was captured holds addresses. So it is forgotten when a KV pool moves or Layers are dropped,
and a pass that waits for the device, such as for how many rows an expert gets, is not captured.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import torch

from meshnet_common.shard_range import ShardRange
from meshnet_worker.engine import compiled
from meshnet_worker.engine.cuda_capture import Capture, Run
from meshnet_worker.engine.fixed import FixedRows, TooDeepError
from meshnet_worker.engine.padding import Padded, Row, Size, pad, size_for
from meshnet_worker.engine.pool import LayerPool
from meshnet_worker.engine.step_package import Step
from meshnet_worker.engine_port import Noted

WARM_PASSES = 16
"""Plain passes of a size before it is worth the second that capturing takes."""
TRIALS = 2
MOST_GRAPHS = 32
"""Of one Shard: each keeps its outputs, and what the driver needs for its launches."""
TOLERANCES = {**compiled.TOLERANCES, torch.float16: 0.01}
"""Largest difference to the plain pass, each row's norm relative to its own."""

FixedPass = Callable[[torch.Tensor, FixedRows, torch.Tensor | None], torch.Tensor]
"""Rows, where they lie and the sampled rows in; hidden states or logits out."""


@dataclass(frozen=True, slots=True)
class Capturing:
    """What is captured, and how: `begin` is called anew when all graphs were forgotten."""

    over: Callable[[ShardRange], FixedPass]
    dtype: torch.dtype
    begin: Callable[[], Capture]


@dataclass(frozen=True, slots=True)
class _Batch:
    """A Step's rows as numbers, and the pools in which they lie."""

    pools: Mapping[int, LayerPool]
    rows: tuple[Row, ...]
    size: Size

    @property
    def addresses(self) -> tuple[tuple[int, int, int], ...]:
        return tuple(pool.address for pool in self.pools.values())

    def padded(self, rows: tuple[Row, ...]) -> Padded:
        pool = next(iter(self.pools.values()))
        assert pool.scratch is not None
        return pad(rows, self.size, pool.block_positions, pool.scratch)


def _batch_of(step: Step) -> _Batch | None:
    """Lay a Step out; None where its Sessions do not lie as a graph needs them."""
    kvs = [segment.kv for segment in step.segments]
    pools = {layer: kvs[0].in_layer(layer) for layer in step.shard_range.layers}
    first, *others = pools.values()
    if any(pool.scratch is None or not all(pool.address) for pool in pools.values()):
        return None
    tables = [first.blocks_of(kv.session) for kv in kvs]
    # One table for all Layers: they differ only while Routes enter the Shard in its middle.
    if any([pool.blocks_of(kv.session) for kv in kvs] != tables for pool in others):
        return None
    rows = []
    for segment, table in zip(step.segments, tables, strict=True):
        needed = segment.position // first.block_positions + 1
        if needed > len(table):
            # Beyond its reservation: the plain pass says so.
            return None
        rows.append(Row(segment.position, table[:needed]))
    size = size_for(rows)
    return _Batch(pools, tuple(rows), size) if size else None


class _Graph:
    """A captured pass, with the tensors that it reads."""

    def __init__(self, run: FixedPass, step: Step, batch: _Batch, capture: Capture) -> None:
        width, rows = batch.size.width, step.rows
        self.trials = 0
        self._rows = rows.new_zeros((width, *rows.shape[1:]))
        self._fixed = FixedRows(batch.size, rows.device)
        self._fixed.put(batch.padded(()))
        sampled = torch.arange(width, device=rows.device) if step.is_sampled else None
        with self._fixed.over(batch.pools):
            self._replay = capture(partial(_run, run, self._rows, self._fixed, sampled))

    def __call__(self, step: Step, batch: _Batch) -> torch.Tensor:
        count = len(step.rows)
        self._rows[:count].copy_(step.rows)
        self._rows[count:].zero_()
        self._fixed.put(batch.padded(batch.rows))
        with self._fixed.over(batch.pools):
            # A copy, since other graphs use the same memory.
            return self._replay()[:count].clone()


def _run(
    run: FixedPass, rows: torch.Tensor, fixed: FixedRows, sampled: torch.Tensor | None
) -> torch.Tensor:
    fixed.begin()
    return run(rows, fixed, sampled)


_Key = tuple[ShardRange, Size, bool]


class DecodeGraphs:
    """The graphs of one Shard; `note` hears once if they are given up."""

    def __init__(self, capturing: Capturing, note: Callable[[Noted], None]) -> None:
        self._capturing = capturing
        self._note = note
        self._is_given_up = False
        self._capture: Capture | None = None
        self._passes: dict[_Key, int] = {}
        self._graphs: dict[_Key, _Graph | None] = {}
        """None where a size is too much for one pass."""
        self._addresses: dict[ShardRange, tuple[tuple[int, int, int], ...]] = {}

    def run(self, step: Step, plain: Run) -> tuple[torch.Tensor, bool]:
        """Run a Step, by replay where that has proved itself; says whether it was."""
        batch = None if self._is_given_up else _batch_of(step)
        if batch is None:
            return plain(), False
        try:
            graph = self._graph_for(step, batch)
            output = graph(step, batch) if graph is not None else None
        except Exception as error:  # noqa: BLE001 - a model's own code and torch raise anything
            self._give_up(f"{type(error).__name__}: {error}")
            return plain(), False
        if graph is None or output is None:
            return plain(), False
        if graph.trials == TRIALS:
            return output, True
        # After the replay, so that what the plain pass writes stays.
        right = plain()
        self._judge(graph, output, right)
        return right, False

    def forget(self) -> None:
        """Let go of every graph and of their memory."""
        self._graphs.clear()
        self._passes.clear()
        self._addresses.clear()
        # torch takes a memory pool back with its last graph.
        self._capture = None

    def _graph_for(self, step: Step, batch: _Batch) -> _Graph | None:
        addresses = batch.addresses
        if self._addresses.setdefault(step.shard_range, addresses) != addresses:
            self.forget()
            self._addresses[step.shard_range] = addresses
        key = (step.shard_range, batch.size, step.is_sampled)
        if key in self._graphs:
            return self._graphs[key]
        self._passes[key] = self._passes.get(key, 0) + 1
        if self._passes[key] < WARM_PASSES or len(self._graphs) >= MOST_GRAPHS:
            return None
        self._capture = self._capture or self._capturing.begin()
        run = self._capturing.over(step.shard_range)
        try:
            self._graphs[key] = _Graph(run, step, batch, self._capture)
        except TooDeepError:
            self._graphs[key] = None
        return self._graphs[key]

    def _judge(self, graph: _Graph, output: torch.Tensor, right: torch.Tensor) -> None:
        # A Session's own fault tells nothing about the graph.
        if not bool(right.isfinite().all()):
            return
        graph.trials += 1
        if not is_close(output, right, self._capturing.dtype):
            self._give_up("a replay computes something else")

    def _give_up(self, reason: str) -> None:
        self.forget()
        self._is_given_up = True
        facts: dict[str, str | int | float] = {"reason": reason}
        self._note(Noted("decode steps run without CUDA graphs", facts, is_warning=True))


def is_close(output: torch.Tensor, right: torch.Tensor, dtype: torch.dtype) -> bool:
    """Whether every row is as right as its numeric format allows."""
    # Not "greater": a difference that is not a number is wrong as well.
    return compiled.row_difference(output, right) <= TOLERANCES[dtype]
