"""What a pass sees in the place of a model's Layers when it runs only some of them."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self

import torch
from torch import nn
from transformers import PreTrainedModel

from meshnet_worker.engine.probe import Structure, UnsupportedModelError


class LayerList(nn.ModuleList):
    """A model's list of Layers, at full length, of which a pass sees what it is shown.

    Global numbers stay right, and a slice, which a ModuleList copies Layer by Layer, costs nothing.
    """

    shown: Sequence[Callable[..., object]]

    @classmethod
    def put_in(cls, model: PreTrainedModel) -> Self:
        """Put one in the place of the model's own list; raises UnsupportedModelError."""
        count = getattr(model.config.get_text_config(), "num_hidden_layers", 0)
        # Some call their output head a decoder; it has no lists.
        decoder = next((m for m in (model.get_decoder(), model) if _lists_in(m)), model)
        lists = _lists_in(decoder)
        lists = [named for named in lists if len(named[1]) == count] or lists
        if not lists:
            raise UnsupportedModelError("It has no list of layers.")
        # The decoder's own list is the outermost one; experts and the like lie inside its layers.
        name, own = min(lists, key=lambda named: named[0].count("."))
        layers = cls(own)
        layers.shown = tuple(own)
        owner, _, leaf = name.rpartition(".")
        setattr(decoder.get_submodule(owner), leaf, layers)
        return layers

    def __iter__(self) -> Iterator[Any]:
        return iter(self.shown)

    def __getitem__(self, index: Any) -> Any:
        return self.shown[index]


def _lists_in(module: nn.Module) -> list[tuple[str, nn.ModuleList]]:
    return [(n, m) for n, m in module.named_modules() if isinstance(m, nn.ModuleList)]


class _StandIn:
    """Stands for a Layer in a pass: it has the Layer's attributes, and takes its calls."""

    def __init__(self, layer: Any, structure: Structure) -> None:
        self._layer = layer
        self._structure = structure

    def __getattr__(self, name: str) -> Any:
        return getattr(self._layer, name)


class Foreign(_StandIn):
    """A Layer that another Hop runs: hidden states pass through."""

    def __call__(self, *given: Any, **named: Any) -> object:
        hidden = self._structure.hidden_of(given, named)
        returned = self._structure.returned
        return (hidden, *(None,) * (returned - 1)) if returned else hidden


class Entered(_StandIn):
    """The first Layer of a later Hop: it reads what came over the wire."""

    def __init__(self, layer: Any, structure: Structure, entering: torch.Tensor) -> None:
        super().__init__(layer, structure)
        self._entering = entering

    def __call__(self, *given: Any, **named: Any) -> object:
        place = self._structure.hidden
        if isinstance(place, str):
            return self._layer(*given, **{**named, place: self._entering})
        return self._layer(*given[:place], self._entering, *given[place + 1 :], **named)


class Left(_StandIn):
    """The last Layer of an earlier Hop: the pass ends behind it."""

    def __call__(self, *given: Any, **named: Any) -> object:
        output = self._layer(*given, **named)
        raise LeftError(output[0] if isinstance(output, tuple) else output)


class LeftError(Exception):
    """Carries hidden states out of a pass that ends before the model does."""

    def __init__(self, hidden: torch.Tensor) -> None:
        super().__init__()
        self.hidden = hidden
