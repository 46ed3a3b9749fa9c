"""What stays opaque in a compiled pass: attention over a Session's KV, and prepacked maps.

A compiler sees two operators of ours that take and give tensors. At run time they find what they
stand for here: the segments of the running pass, and the map of a number. One thread runs passes,
so a pass is set and taken away like a variable.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol
from weakref import WeakValueDictionary

import torch

LIBRARY = torch.library.Library("meshnet", "DEF")
LIBRARY.define(
    "attend(Tensor query, Tensor key, Tensor value, int layer, float? scaling, int? window, "
    "float? softcap, Tensor? sinks) -> Tensor"
)
LIBRARY.define("linear_map(Tensor rows, int number, int columns) -> Tensor")


class Map(Protocol):
    """A linear map that is called by its number from compiled code."""

    def kernel(self, rows: torch.Tensor) -> torch.Tensor: ...


class _Now:
    """The pass that is being traced or run, if any."""

    is_tracing = False
    segments: Sequence[Any] = ()


_now = _Now()
_maps: WeakValueDictionary[int, Map] = WeakValueDictionary()
_numbers = iter(range(1 << 62))


def is_tracing() -> bool:
    """Whether a pass is being traced, so that an operator must stand for the work."""
    return _now.is_tracing


def number_of(linear_map: Map) -> int:
    """Give a map a number, which it keeps as long as it lives."""
    number = next(_numbers)
    _maps[number] = linear_map
    return number


@contextmanager
def tracing() -> Iterator[None]:
    """Let operators stand for the work inside the block."""
    _now.is_tracing = True
    try:
        yield
    finally:
        _now.is_tracing = False


@contextmanager
def passing(segments: Sequence[Any]) -> Iterator[None]:
    """Let the operators work on these segments inside the block."""
    _now.segments = segments
    try:
        yield
    finally:
        _now.segments = ()


def segments_now() -> Sequence[Any]:
    """The segments of the running pass."""
    return _now.segments


def _linear_map(rows: torch.Tensor, number: int, _columns: int) -> torch.Tensor:
    return _maps[number].kernel(rows)


def _shape_of_map(rows: torch.Tensor, _number: int, columns: int) -> torch.Tensor:
    return rows.new_empty((*rows.shape[:-1], columns))


def _shape_of_attend(
    query: torch.Tensor, _key: torch.Tensor, value: torch.Tensor, *_rest: object
) -> torch.Tensor:
    return query.new_empty((1, query.shape[2], query.shape[1], value.shape[3]))


LIBRARY.impl("linear_map", _linear_map, "CPU")
torch.library.register_fake("meshnet::linear_map", _shape_of_map, lib=LIBRARY)
torch.library.register_fake("meshnet::attend", _shape_of_attend, lib=LIBRARY)
