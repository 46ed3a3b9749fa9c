"""The weights that are on the device, dense or packed, in the modules that use them."""

from collections.abc import Collection

import torch
from torch import nn
from transformers import PreTrainedModel

from meshnet_worker.engine.packed import PackedWeight
from meshnet_worker.engine.parts import Parts


class PlacedWeights:
    """A dense weight is the module's parameter; beside a packed one that stays on `meta`."""

    def __init__(self, model: PreTrainedModel, parts: Parts) -> None:
        self._model = model
        self._parts = parts
        self._packed: dict[str, PackedWeight] = {}

    def holds(self, name: str) -> bool:
        return name in self._packed or self.parameter(name).device.type != "meta"

    def parameter(self, name: str) -> nn.Parameter:
        return self._model.get_parameter(name)

    def same(self, name: str) -> int:
        """Tell tied weights by one number, as long as they are held."""
        return id(self._packed.get(name) or self.parameter(name))

    def size_bytes(self, name: str) -> int | None:
        """What a weight takes on the device; None for one that is not there."""
        if name in self._packed:
            return self._packed[name].size_bytes
        parameter = self.parameter(name)
        is_there = parameter.device.type != "meta"
        return parameter.numel() * parameter.element_size() if is_there else None

    def put(self, name: str, tensor: torch.Tensor) -> None:
        """Make a tensor the weight of this name and of all that are tied to it."""
        parameter = nn.Parameter(tensor, requires_grad=False)
        for alias in self._every_name(name):
            module, leaf = self._owner(alias)
            module.register_parameter(leaf, parameter)

    def put_packed(self, name: str, packed: PackedWeight) -> None:
        """Let all modules with this weight unpack it; raises UnpackableWeightError."""
        names = self._every_name(name)
        forwards = [packed.forward_of(self._owner(alias)[0]) for alias in names]
        for alias, forward in zip(names, forwards, strict=True):
            vars(self._owner(alias)[0])["forward"] = forward
            self._packed[alias] = packed

    def put_prepacked(self, name: str, packed: PackedWeight) -> None:
        """Let one module compute with a new layout of its weight, in place of the weight itself.

        A tied embedding, if it is on this device too, keeps the weight as it is.
        """
        module, _ = self._owner(name)
        self.put(name, self.parameter(name).to("meta"))
        vars(module)["forward"] = packed.forward_of(module)
        self._packed[name] = packed

    def take_out(self, name: str, kept: Collection[str]) -> None:
        """Let go of a weight under this name; tied ones that are `kept` stay as they are."""
        if self._packed.pop(name, None) is not None:
            vars(self._owner(name)[0]).pop("forward", None)
        tied = [alias for alias in self._parts.aliases(name) if alias in kept]
        # A tied weight that lies packed does not need the dense one.
        if all(alias in self._packed for alias in tied):
            self.put(name, self.parameter(name).to("meta"))

    def _every_name(self, name: str) -> tuple[str, ...]:
        return (name, *self._parts.aliases(name))

    def _owner(self, name: str) -> tuple[nn.Module, str]:
        owner, _, leaf = name.rpartition(".")
        return self._model.get_submodule(owner), leaf
