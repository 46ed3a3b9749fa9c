"""Whether a model's Layers may run on one flattened Batch with the engine's own attention.

A pass on the meta device goes through an attention function that notes how it is called. Whatever
`attend` would not do exactly as the model asks is a reason against it: another mask than "causal,
within the window that is given", a bias, several attentions in one Layer.
"""

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface, DynamicCache, PreTrainedModel
from transformers.cache_utils import LinearAttentionCacheLayerMixin as Recurrent

from meshnet_worker.engine.attention import attend
from meshnet_worker.engine.positions import Entry
from meshnet_worker.engine.probe import (
    PROBE_TOKENS,
    Structure,
    UnsupportedModelError,
    accepts,
    structure_of,
)

NAME = "meshnet-probe"

_POSITIONAL = 5
_HONOURED = frozenset(list(inspect.signature(attend).parameters)[_POSITIONAL:])
_HARMLESS = frozenset({"position_ids", "cache_position", "use_cache", "is_causal", "dropout"})
_IMPLEMENTATION = "_attn_implementation"
_FAR = 1_000_000
"""A position beyond any window or chunk."""


class NotFlatError(Exception):
    """A reason why Sessions cannot share one flattened Batch."""


class LooksAheadError(UnsupportedModelError):
    """The model is no causal one: a position would change with those that follow."""


@dataclass(slots=True)
class AttentionCalls:
    """Travels as `flat_segments` through a pass and notes every call of the attention function.

    `values` gives the numbers that each Layer stores per position: keys and values together.
    """

    layers: list[int] = field(default_factory=list)
    values: list[int] = field(default_factory=list)

    def check(self, layer_count: int) -> None:
        """Raise NotFlatError unless each Layer came once, under its own number."""
        if self.layers != list(range(layer_count)):
            raise NotFlatError(
                "its layers do not each use transformers' attention interface once, under their "
                "own number"
            )


def probe_flat(model: PreTrainedModel, layers: tuple[torch.nn.Module, ...]) -> Structure:
    """Learn the structure of a model whose Layers may share a flattened Batch.

    Raises UnsupportedModelError, NotFlatError, or whatever the model's own code raises.
    """
    if not accepts(model, "position_ids"):
        raise NotFlatError("it takes no positions")
    if any(isinstance(layer, Recurrent) for layer in DynamicCache(config=model.config).layers):
        raise NotFlatError("its layers carry a recurrent state")
    calls = AttentionCalls()

    def run(ids: torch.Tensor, positions: torch.Tensor) -> object:
        calls.layers.clear()
        calls.values.clear()
        return model(input_ids=ids, position_ids=positions, use_cache=False, flat_segments=calls)

    with _attention(model, NAME):
        structure = structure_of(model, layers, run)
        entry = Entry(model, layers[0], structure, flat_segments=AttentionCalls())
        is_counted, is_mixed = entry.is_counted_from_zero(), entry.mixes_rows()
    calls.check(len(layers))
    if not is_counted:
        raise NotFlatError("it counts positions in a way of its own")
    if is_mixed:
        raise NotFlatError("what it makes of a position depends on the others in the pass")
    structure.kv_values = tuple(calls.values)
    return structure


@contextmanager
def _attention(model: torch.nn.Module, name: str) -> Iterator[None]:
    configs = {id(m.config): m.config for m in model.modules() if hasattr(m, "config")}.values()
    own = [getattr(config, _IMPLEMENTATION) for config in configs]
    for config in configs:
        setattr(config, _IMPLEMENTATION, name)
    try:
        yield
    finally:
        for config, kept in zip(configs, own, strict=True):
            setattr(config, _IMPLEMENTATION, kept)


def _note(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    flat_segments: AttentionCalls | None = None,
    **named: Any,
) -> tuple[torch.Tensor, None]:
    if flat_segments is None:
        raise NotFlatError("its layers do not hand arguments down to their attention")
    if not query.shape[2] == key.shape[2] == value.shape[2] == PROBE_TOKENS:
        raise NotFlatError("its attention reads other positions than its layer's")
    for name, given in named.items():
        is_given = given is not None and not (isinstance(given, int | float) and not given)
        if is_given and name not in _HONOURED and name not in _HARMLESS:
            raise NotFlatError(f"its attention is given `{name}`")
    _check_mask(attention_mask, named.get("sliding_window"))
    flat_segments.layers.append(int(getattr(module, "layer_idx", -1)))
    flat_segments.values.append(key.shape[1] * key.shape[3] + value.shape[1] * value.shape[3])
    # Something that depends on all three, as the outcome of attention does.
    mixed = query.sum() + key.sum() + value.sum()
    shape = (1, PROBE_TOKENS, query.shape[1], value.shape[3])
    return mixed.expand(shape).clone(), None


def _describe_mask(
    q_length: int, kv_length: int, mask_function: Callable[..., Any], **_unused: object
) -> torch.Tensor:
    """Stand in for a mask: a tensor that remembers its rule."""
    mask = torch.ones((1, 1, q_length, kv_length), dtype=torch.bool, device="meta")
    mask.rule = mask_function  # type: ignore[attr-defined]  # a tensor takes attributes
    return mask


def _check_mask(mask: torch.Tensor | None, window: int | None) -> None:
    """Raise NotFlatError if a mask is not the one that `attend` makes of a window."""
    if mask is None:
        return
    rule = getattr(mask, "rule", None)
    if rule is None:
        raise NotFlatError("its attention is given a mask of its own making")
    edges = {0, 1, 2, 5, _FAR // 2, _FAR}
    if window is not None:
        edges |= {window - 1, window, window + 1, 2 * window, 2 * window + 1, 3 * window + 2}
    places = torch.tensor(sorted(edges))
    rows, columns = places[None, None, :, None], places[None, None, None, :]
    expected = columns <= rows
    if window is not None:
        expected = expected & (columns > rows - window)
    first = torch.zeros((1, 1, 1, 1), dtype=torch.long)
    try:
        asked = rule(first, first, rows, columns)
    except (RuntimeError, IndexError, NotImplementedError) as error:
        raise NotFlatError("the rule of its mask depends on more than positions") from error
    if bool((asked & (columns > rows)).any()):
        raise LooksAheadError("Its layers read positions that follow.")
    if not torch.equal(asked.expand_as(expected), expected):
        raise NotFlatError("its mask is not causal within one window")


AttentionInterface.register(NAME, _note)
AttentionMaskInterface.register(NAME, _describe_mask)
