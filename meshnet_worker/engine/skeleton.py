"""A whole model without weights, of which any run of Layers can be executed alone.

The model is built at full length on the meta device, so global layer numbers, layer types and rope
settings stay right and nothing is sliced. A pass goes through the model's own code with stand-ins
for foreign Layers. Where it starts later, the hidden states that came over the wire take the place
of what the first Layer of the range is given; where it ends earlier, it stops behind the last one.
So nothing that comes before the first Layer or after the last is done twice or by the wrong Hop.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from accelerate import init_empty_weights  # type: ignore[import-untyped]  # ships no types
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from meshnet_common.shard_range import ShardRange
from meshnet_worker.engine import attention
from meshnet_worker.engine.attention import FlatSegment
from meshnet_worker.engine.cached import CachedRuns, probe_cached
from meshnet_worker.engine.data_free import data_free
from meshnet_worker.engine.fixed import FixedRows
from meshnet_worker.engine.flatness import LooksAheadError, probe_flat
from meshnet_worker.engine.probe import (
    PROBE_TOKENS,
    Structure,
    UnsupportedModelError,
    accepts,
    replaced_forwards,
    set_apart,
    zeros_like_template,
)
from meshnet_worker.engine.stand_ins import Entered, Foreign, LayerList, Left, LeftError


class Skeleton:
    """The model in parts; weights are materialised into it and taken out again by Layer.

    `why_alone` gives the reason where segments cannot share a pass and need a SessionCache each.
    Raises UnsupportedModelError when the model cannot be run in parts.
    """

    model: PreTrainedModel
    layers: tuple[nn.Module, ...]

    def __init__(self, folder: str, dtype: torch.dtype) -> None:
        self.config: PreTrainedConfig = AutoConfig.from_pretrained(folder, trust_remote_code=False)
        self.why_alone = ""
        self._cached: CachedRuns | None = None
        self._dtype = dtype
        self._structure = self._learn()
        self.siblings = self._structure.siblings
        self.entry, self.exit = self._structure.entry, self._structure.exit
        self._foreign = [Foreign(layer, self._structure) for layer in self.layers]
        self._takes = frozenset(k for k in _WANTED if accepts(self.model, k))
        self._rehearse()

    @property
    def layer_count(self) -> int:
        return len(self.layers)

    @property
    def runs_alone(self) -> bool:
        """Whether segments run one by one through transformers' own Cache."""
        return self._cached is not None

    @property
    def kv_values(self) -> tuple[int, ...]:
        """The numbers that each Layer stores per position; empty when it runs alone."""
        return self._structure.kv_values

    def run(
        self,
        shard_range: ShardRange,
        rows: torch.Tensor,
        segments: Sequence[FlatSegment],
        sampled_rows: Sequence[int],
    ) -> torch.Tensor:
        """Run a flattened Batch through Layers whose weights are there.

        `rows` is token ids `[rows]` when the range starts at 0, else hidden states
        `[rows, hidden]`. Returns logits `[len(sampled_rows), vocabulary]` in float32 when the
        range ends the model and something is sampled, else hidden states `[rows, hidden]`.
        """
        is_sampled = shard_range.end == self.layer_count and bool(sampled_rows)
        sampled = torch.tensor(sampled_rows, device=rows.device) if is_sampled else None
        run = partial(self._run, shard_range)
        if self._cached is not None:
            output = self._cached.run(run, rows, segments, sampled)
        else:
            spots = [torch.arange(s.position, s.position + s.tokens) for s in segments]
            positions = torch.cat(spots).to(rows.device)
            output = run(rows, positions, sampled, use_cache=False, flat_segments=segments)
        return output.float() if is_sampled else output

    def tensor_pass(
        self,
        shard_range: ShardRange,
        rows: torch.Tensor,
        positions: torch.Tensor,
        sampled_rows: torch.Tensor | None,
        flat_segments: FixedRows | tuple[()] = (),
    ) -> torch.Tensor:
        """The same pass as a function of tensors alone, for a compiler to trace or to capture."""
        named: dict[str, object] = {"use_cache": False, "flat_segments": flat_segments}
        output = self._run(shard_range, rows, positions, sampled_rows, **named)
        return output if sampled_rows is None else output.float()

    def _run(
        self,
        shard_range: ShardRange,
        rows: torch.Tensor,
        positions: torch.Tensor,
        sampled_rows: torch.Tensor | None,
        **named: object,
    ) -> torch.Tensor:
        ends_model = shard_range.end == self.layer_count and sampled_rows is not None
        ids, entering = rows, None
        if shard_range.start > 0:
            ids = torch.zeros(len(rows), dtype=torch.long, device=rows.device)
            entering = rows.unsqueeze(0)
        # With a Cache of its own a model counts positions itself, in its own way.
        spots = None if self.runs_alone else positions.unsqueeze(0)
        wanted = {"position_ids": spots, "logits_to_keep": sampled_rows}
        named |= {k: v for k, v in wanted.items() if k in self._takes and v is not None}
        entry = self._without_entry(rows) if shard_range.start > 0 else nullcontext()
        with entry, self._shown(shard_range, entering, leaves=not ends_model):
            try:
                output = self.model(input_ids=ids.unsqueeze(0), **named)
            except LeftError as left:
                return left.hidden[0]
        logits: torch.Tensor = output.logits[0]
        if sampled_rows is None or len(logits) == len(sampled_rows):
            return logits
        return logits[sampled_rows]

    def _learn(self) -> Structure:
        try:
            self._build(attention.NAME)
            return probe_flat(self.model, self.layers)
        except LooksAheadError:
            raise
        except Exception as error:  # noqa: BLE001 - a model's own code raises anything
            self.why_alone = _reason(error)
        try:
            self._build(None)
            structure = probe_cached(self.model, self.layers)
            self._cached = CachedRuns(self.model, structure.token_by_token)
        except RuntimeError as error:
            # torch's own complaint: the meta device has shapes, but no values to go by.
            raise UnsupportedModelError("It cannot be watched without weights.") from error
        except Exception as error:
            raise UnsupportedModelError(_reason(error)) from error
        return structure

    def _rehearse(self) -> None:
        """Run every Layer as a Hop of its own on the meta device.

        A Layer that misses something then says so at load, not in somebody's answer.
        """
        hidden = torch.zeros(
            (PROBE_TOKENS, self.config.get_text_config().hidden_size),
            dtype=self._dtype,
            device="meta",
        )
        positions = torch.arange(PROBE_TOKENS, device="meta")
        with torch.no_grad(), set_apart(self.model, "meta"), data_free():
            for layer in range(1, self.layer_count):
                named = self._cached.fresh() if self._cached else {"use_cache": False}
                one = ShardRange(layer, layer + 1)
                try:
                    self._run(one, hidden, positions, None, **named)
                except Exception as error:
                    reason = f"Layer {layer} cannot run apart from the others: {_reason(error)}"
                    raise UnsupportedModelError(reason) from error

    def _build(self, implementation: str | None) -> None:
        # Buffers such as rope frequencies are computed, not loaded: only parameters go to meta.
        with init_empty_weights(include_buffers=False):
            self.model = AutoModelForCausalLM.from_config(
                self.config, attn_implementation=implementation, dtype=self._dtype
            )
        self.model.eval()
        self.model.tie_weights()
        self._list = LayerList.put_in(self.model)
        self.layers = tuple(self._list)
        parts = [module for layer in self.layers for module in layer.modules()]
        if any(getattr(module, "is_decoder", True) is False for module in parts):
            raise LooksAheadError("Its configuration makes its layers no decoder's.")

    @contextmanager
    def _shown(
        self, shard_range: ShardRange, entering: torch.Tensor | None, leaves: bool
    ) -> Iterator[None]:
        first, last = shard_range.start, shard_range.end - 1
        shown: list[Callable[..., Any]] = [*self._foreign]
        shown[first : last + 1] = self.layers[first : last + 1]
        if entering is not None:
            shown[first] = Entered(shown[first], self._structure, entering)
        if leaves:
            shown[last] = Left(shown[last], self._structure)
        self._list.shown = shown
        try:
            yield
        finally:
            self._list.shown = self.layers

    def _without_entry(self, rows: torch.Tensor) -> AbstractContextManager[None]:
        """Let the entry, whose weights only the first Hop has, return zeros inside the block."""
        templates = self._structure.entry_outputs
        return replaced_forwards({m: partial(_zeros, templates[m], rows) for m in self.entry})


_WANTED = ("position_ids", "logits_to_keep")


def _zeros(template: Any, rows: torch.Tensor, *_given: Any, **_named: Any) -> Any:
    return zeros_like_template(template, rows)


def _reason(error: Exception) -> str:
    if isinstance(error, UnsupportedModelError):
        return error.detail
    text = str(error).strip() or "no message"
    return f"{type(error).__name__}: {text.splitlines()[0].rstrip('.')}."
