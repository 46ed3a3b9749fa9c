"""A whole model without weights, of which any run of Layers can be executed alone.

The model is built at full length on the meta device, so global layer numbers, layer types and rope
settings stay right and nothing is sliced. A pass is shown stand-ins for the Layers outside its
range, which pass their input through; what comes before the first Layer is bypassed by Hops that
start later (GPT-2 would add its positions twice), what comes after the last by Hops that end
earlier. Which part is which is learnt by watching one pass on the meta device, not from names.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Self

import torch
from accelerate import init_empty_weights  # type: ignore[import-untyped]  # ships no types
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from meshnet_common.errors import MeshnetError
from meshnet_common.shard_range import ShardRange
from meshnet_worker.engine import attention
from meshnet_worker.engine.siblings import Siblings, watched_linears

PROBE_TOKENS = 3


class UnsupportedModelError(MeshnetError):
    """The model cannot be run in single Layers by this release."""


@dataclass(slots=True)
class _Watched:
    """What one pass on the meta device showed."""

    before: list[nn.Module] = field(default_factory=list)
    after: list[nn.Module] = field(default_factory=list)
    layer_returns_tuple: bool = False
    siblings: list[Siblings] = field(default_factory=list)


class Skeleton:
    """The model in parts; weights are materialised into it and taken out again by Layer."""

    def __init__(self, folder: str, dtype: torch.dtype) -> None:
        self.config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
        # Buffers such as rope frequencies are computed, not loaded: only parameters go to meta.
        with init_empty_weights(include_buffers=False):
            self.model: PreTrainedModel = AutoModelForCausalLM.from_config(
                self.config, attn_implementation=attention.NAME, dtype=dtype
            )
        self.model.eval()
        self.model.tie_weights()
        self.base: nn.Module = getattr(self.model, self.model.base_model_prefix)
        self._list = _LayerList.put_in(self.base)
        self.layers = tuple(self._list)
        self._active = ShardRange(0, len(self.layers))
        watched = self._watch()
        self.siblings = tuple(watched.siblings)
        self.entry = (self.model.get_input_embeddings(), *watched.before)
        self.exit = (*watched.after, self.model.get_output_embeddings())
        self._gate(watched)

    @property
    def layer_count(self) -> int:
        return len(self.layers)

    @contextmanager
    def active(self, shard_range: ShardRange) -> Iterator[None]:
        """Run only these Layers inside the block."""
        self._active = shard_range
        self._list.shown = self._shown(shard_range)
        try:
            yield
        finally:
            self._active = ShardRange(0, self.layer_count)
            self._list.shown = self.layers

    def _watch(self) -> _Watched:
        watched = _Watched()
        attended: set[int] = set()
        calls: list[tuple[nn.Module, Any]] = []
        embedding = self.model.get_input_embeddings()
        children = [m for m in self.base.children() if m is not self._list and m is not embedding]
        hooks = [
            module.register_forward_hook(lambda m, _args, output: calls.append((m, output)))
            for module in (*children, *self.layers)
        ]
        try:
            ids = torch.zeros((1, PROBE_TOKENS), dtype=torch.long, device="meta")
            positions = torch.arange(PROBE_TOKENS, device="meta").unsqueeze(0)
            with (
                torch.inference_mode(),
                _buffers_on_meta(self.base),
                watched_linears(self.layers) as watched.siblings,
            ):
                self.base(input_ids=ids, position_ids=positions, use_cache=False, attended=attended)
        finally:
            for hook in hooks:
                hook.remove()
        layers = set(self.layers)
        places = [index for index, (module, _) in enumerate(calls) if module in layers]
        if len(places) != self.layer_count:
            raise UnsupportedModelError(f"{self.layer_count} layers ran as {len(places)}.")
        if len(attended) != self.layer_count:
            raise UnsupportedModelError(
                f"{self.layer_count - len(attended)} layers do not use transformers' attention "
                "interface."
            )
        watched.layer_returns_tuple = isinstance(calls[places[0]][1], tuple)
        watched.before = [m for m, out in calls[: places[0]] if isinstance(out, torch.Tensor)]
        watched.after = [m for m, _ in calls[places[-1] + 1 :]]
        return watched

    def _shown(self, shard_range: ShardRange) -> tuple[Callable[..., object], ...]:
        before, after = self._foreign[: shard_range.start], self._foreign[shard_range.end :]
        return (*before, *self.layers[shard_range.start : shard_range.end], *after)

    def _gate(self, watched: _Watched) -> None:
        bypass_layer = _as_tuple if watched.layer_returns_tuple else _as_is
        self._foreign = tuple(_ForeignLayer(layer, bypass_layer) for layer in self.layers)
        for module in watched.before:
            bypass = _as_zero if isinstance(module, nn.Embedding) else _as_is
            _gate(module, lambda: self._active.start == 0, bypass)
        for module in watched.after:
            _gate(module, lambda: self._active.end == self.layer_count, _as_is)


class _LayerList(nn.ModuleList):
    """A model's list of Layers, at full length, of which a pass sees what it is shown.

    Global numbers stay right, and a slice, which a ModuleList copies Layer by Layer, costs nothing.
    """

    shown: Sequence[Callable[..., object]]

    @classmethod
    def put_in(cls, base: nn.Module) -> Self:
        """Put one in the place of the model's own list; raises UnsupportedModelError."""
        lists = [(n, m) for n, m in base.named_modules() if isinstance(m, nn.ModuleList)]
        if not lists:
            raise UnsupportedModelError("It has no list of layers.")
        # The decoder's own list is the outermost one; experts and the like lie inside its layers.
        name, own = min(lists, key=lambda named: named[0].count("."))
        layers = cls(own)
        layers.shown = tuple(own)
        owner, _, leaf = name.rpartition(".")
        setattr(base.get_submodule(owner), leaf, layers)
        return layers

    def __iter__(self) -> Iterator[Any]:
        return iter(self.shown)

    def __getitem__(self, index: Any) -> Any:
        return self.shown[index]


class _ForeignLayer:
    """Stands for a Layer that another Hop runs: the Layer's attributes, and no work."""

    __slots__ = ("_bypass", "_layer")

    def __init__(self, layer: nn.Module, bypass: Callable[[torch.Tensor], object]) -> None:
        self._layer = layer
        self._bypass = bypass

    def __call__(self, hidden: torch.Tensor, *_rest: object, **_named: object) -> object:
        return self._bypass(hidden)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._layer, name)


@contextmanager
def _buffers_on_meta(base: nn.Module) -> Iterator[None]:
    kept = [
        (module, name, buffer)
        for module in base.modules()
        for name, buffer in module.named_buffers(recurse=False)
    ]
    for module, name, buffer in kept:
        setattr(module, name, buffer.to("meta"))
    try:
        yield
    finally:
        for module, name, buffer in kept:
            setattr(module, name, buffer)


def _gate(
    module: nn.Module, is_active: Callable[[], bool], bypass: Callable[[torch.Tensor], object]
) -> None:
    own_forward = module.forward

    def gated(first: torch.Tensor, *rest: object, **named: object) -> object:
        return own_forward(first, *rest, **named) if is_active() else bypass(first)

    # An attribute of the instance: the module keeps its type and everything else.
    module.forward = gated


def _as_is(hidden: torch.Tensor) -> torch.Tensor:
    return hidden


def _as_tuple(hidden: torch.Tensor) -> tuple[torch.Tensor]:
    return (hidden,)


def _as_zero(positions: torch.Tensor) -> torch.Tensor:
    # Position embeddings are added to the hidden states; nothing is added on a later Hop.
    return torch.zeros((), device=positions.device)
