"""Lets code that reads values run on the meta device, where there are none.

A router may ask which tokens go to an expert. On the meta device nobody knows, so each question is
answered with "all of them", and each single value is one.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode


@contextmanager
def data_free() -> Iterator[None]:
    """Answer questions about values inside the block."""
    with _Values(), _Lists():  # type: ignore[no-untyped-call]  # torch leaves it untyped
        yield


class _Values(TorchDispatchMode):
    def __torch_dispatch__(
        self,
        func: Any,
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        del types
        named = dict(kwargs or {})
        if args and isinstance(args[0], torch.Tensor) and args[0].is_meta:
            return _ANSWERS.get(str(func), func)(*args, **named)
        return func(*args, **named)


class _Lists(TorchFunctionMode):
    def __torch_function__(
        self,
        func: Any,
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        del types
        if func is torch.Tensor.tolist and args[0].is_meta:
            return torch.ones_like(args[0], device="cpu").tolist()
        return func(*args, **(kwargs or {}))


def _everywhere(asked: torch.Tensor) -> torch.Tensor:
    return torch.empty((asked.numel(), asked.dim()), dtype=torch.long, device="meta")


def _one(asked: torch.Tensor) -> float:
    return torch.ones((), dtype=asked.dtype).item()


def _true(_asked: torch.Tensor) -> bool:
    return True


def _grouped(rows: torch.Tensor, weights: torch.Tensor, *_rest: object, **_named: object) -> Any:
    return rows.new_empty((rows.shape[0], weights.shape[-1]))


def _counted(asked: torch.Tensor, _weights: object = None, minlength: int = 0) -> torch.Tensor:
    return asked.new_empty((max(minlength, 1),))


_ANSWERS: Mapping[str, Callable[..., Any]] = {
    "aten.nonzero.default": _everywhere,
    "aten._local_scalar_dense.default": _one,
    "aten.is_nonzero.default": _true,
    "aten.bincount.default": _counted,
    # Its own rule for the meta device knows one dtype only.
    "aten._grouped_mm.default": _grouped,
}
