"""Linear maps that read the same input run as one: query, key and value, or gate and up.

Their weights are stacked in one allocation, so one call streams them all; each map still owns its
rows as its own parameter. A Decode Step then makes four calls a Layer instead of seven, and small
maps no longer waste the memory's bandwidth. Which maps are siblings is learnt by watching a pass.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import nn
from torch.nn import functional

Siblings = tuple[nn.Linear, ...]


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
    weight = _stacked([module.weight for module in siblings])
    has_bias = siblings[0].bias is not None
    bias = _stacked([module.bias for module in siblings]) if has_bias else None
    if weight is None or (has_bias and bias is None):
        return
    joined = _Joined([module.out_features for module in siblings], weight, bias)
    for place, module in enumerate(siblings):
        # An attribute of the instance, which `part` takes away again.
        vars(module)["forward"] = joined.forward_of(place, module)


def part(siblings: Siblings) -> None:
    """Let each of them run alone again, and let go of the stacked weight."""
    for module in siblings:
        vars(module).pop("forward", None)


class _Joined:
    """The first sibling computes for all; the others take what is theirs."""

    def __init__(
        self, sizes: Sequence[int], weight: torch.Tensor, bias: torch.Tensor | None
    ) -> None:
        self._sizes = list(sizes)
        self._weight = weight
        self._bias = bias
        self._given: torch.Tensor | None = None
        self._outputs: Sequence[torch.Tensor] = ()

    def forward_of(self, place: int, module: nn.Linear) -> Callable[[torch.Tensor], torch.Tensor]:
        def compute(given: torch.Tensor) -> torch.Tensor:
            stacked = functional.linear(given, self._weight, self._bias)
            self._given, self._outputs = given, torch.split(stacked, self._sizes, dim=-1)
            return self._outputs[0]

        def take(given: torch.Tensor) -> torch.Tensor:
            if given is not self._given:
                return functional.linear(given, module.weight, module.bias)
            output = self._outputs[place]
            if place == len(self._sizes) - 1:
                self._given, self._outputs = None, ()
            return output

        return take if place else compute


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
    return len(set(group)) == len(group) > 1 and len(shapes) == 1
