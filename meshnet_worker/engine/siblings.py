"""Linear maps that read the same input run as one: query, key and value, or gate and up.

Their weights are stacked in one allocation, so one call streams them all. A Decode Step then makes
four calls a Layer instead of seven, and small maps no longer waste the memory's bandwidth. Which
maps are siblings is learnt by watching a pass.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import starmap
from typing import cast

import torch
from torch import nn
from torch.nn import functional

from meshnet_worker.engine.prepacked import LinearMap, prepacked

Siblings = tuple[nn.Linear, ...]
"""Maps that read the same input, in the order in which they run; often one alone."""


@contextmanager
def watched_linears(layers: Sequence[nn.Module]) -> Iterator[list[Siblings]]:
    """Watch a pass inside the block; afterwards the list names the siblings of every Layer."""
    seen: list[tuple[nn.Linear, torch.Tensor]] = []
    hooks = [
        module.register_forward_pre_hook(lambda m, given: seen.append((m, given[0])))
        for layer in layers
        for module in layer.modules()
        # Exactly nn.Linear: whatever computes something else keeps its own way.
        if type(module) is nn.Linear
    ]
    found: list[Siblings] = []
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()
    groups: dict[int, list[nn.Linear]] = {}
    for module, given in seen:
        groups.setdefault(id(given), []).append(module)
    found.extend(tuple(group) for group in groups.values() if _may_be_stacked(group))


def join_where_stacked(siblings: Siblings) -> None:
    """Let siblings run as one if their parameters lie side by side in one storage."""
    weight, bias = _stacked_parameters(siblings)
    if len(siblings) == 1 or weight is None:
        return
    forwards = _joined(siblings, lambda rows: functional.linear(rows, weight, bias))
    for module, forward in zip(siblings, forwards, strict=True):
        # An attribute of the instance, which `part` takes away again.
        vars(module)["forward"] = forward


def part(siblings: Siblings) -> None:
    """Let each of them run alone again, and let go of the stacked weight."""
    for module in siblings:
        vars(module).pop("forward", None)


@dataclass(frozen=True, slots=True)
class PrepackedWeight:
    """A dense weight that lies in the layout of the CPU's matrix kernels."""

    size_bytes: int
    forward: LinearMap

    def forward_of(self, _module: nn.Module) -> LinearMap:
        """What the module computes from now on."""
        return self.forward


def prepack(siblings: Siblings) -> tuple[PrepackedWeight, ...]:
    """Lay the weights of siblings out as one; empty where that gains nothing or cannot be."""
    weight, bias = _stacked_parameters(siblings)
    linear_map = prepacked(weight, bias) if weight is not None else None
    if linear_map is None:
        return ()
    sizes = [module.weight.numel() * module.weight.element_size() for module in siblings]
    forwards = _joined(siblings, linear_map)
    return tuple(starmap(PrepackedWeight, zip(sizes, forwards, strict=True)))


def _joined(siblings: Siblings, stacked: LinearMap) -> list[LinearMap]:
    if len(siblings) == 1:
        return [stacked]
    joined = _Joined([module.out_features for module in siblings], stacked)
    return [joined.forward_of(place) for place in range(len(siblings))]


class _Joined:
    """The first sibling computes for all; the others take what is theirs."""

    def __init__(self, sizes: Sequence[int], stacked: LinearMap) -> None:
        self._sizes = list(sizes)
        self._stacked = stacked
        self._given: torch.Tensor | None = None
        self._outputs: Sequence[torch.Tensor] = ()

    def forward_of(self, place: int) -> LinearMap:
        def compute(given: torch.Tensor) -> torch.Tensor:
            self._given, self._outputs = given, self._run(given)
            return self._outputs[0]

        def take(given: torch.Tensor) -> torch.Tensor:
            if given is not self._given:
                return self._run(given)[place]
            output = self._outputs[place]
            if place == len(self._sizes) - 1:
                self._given, self._outputs = None, ()
            return output

        return take if place else compute

    def _run(self, given: torch.Tensor) -> Sequence[torch.Tensor]:
        return torch.split(self._stacked(given), self._sizes, dim=-1)


def _stacked_parameters(siblings: Siblings) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    weight = _stacked([module.weight for module in siblings])
    # torch's types do not know that a map may have none.
    biases = [cast(torch.Tensor | None, module.bias) for module in siblings]
    present = [bias for bias in biases if bias is not None]
    bias = _stacked(present) if present else None
    return (None if present and bias is None else weight), bias


def _stacked(rows: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """View tensors that follow each other in one storage as one; None where they do not."""
    first, end = rows[0], rows[0].storage_offset()
    for tensor in rows:
        is_next = tensor.untyped_storage().data_ptr() == first.untyped_storage().data_ptr()
        if not is_next or tensor.storage_offset() != end or not tensor.is_contiguous():
            return None
        end += tensor.numel()
    size = (sum(tensor.shape[0] for tensor in rows), *first.shape[1:])
    return first.detach().as_strided(size, first.stride(), first.storage_offset())


def _may_be_stacked(group: Sequence[nn.Linear]) -> bool:
    shapes = {(module.in_features, module.bias is None) for module in group}
    return len(set(group)) == len(group) and len(shapes) == 1
