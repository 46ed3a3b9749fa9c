"""Which parameters belong to which Layer, to the entry and to the exit of a model."""

from collections.abc import Iterator, Sequence

from torch import nn

from meshnet_common.shard_range import ShardRange
from meshnet_worker.engine.packed import UnpackableWeightError, is_linear
from meshnet_worker.engine.siblings import Siblings
from meshnet_worker.engine.skeleton import Skeleton

LEAST_LINEAR_SHARE = 0.8


class Parts:
    """The names of a model's parameters by place, and which of them are one and the same."""

    def __init__(self, skeleton: Skeleton) -> None:
        model = self._model = skeleton.model
        names = self._module_names = {id(module): name for name, module in model.named_modules()}
        head = model.get_output_embeddings()
        heads = ((head,),) if type(head) is nn.Linear else ()
        self._siblings = {self.weight_of(group[0]): group for group in (*skeleton.siblings, *heads)}
        self._layers = [_parameters(names[id(layer)], layer) for layer in skeleton.layers]
        self._entry = [n for m in skeleton.entry for n in _parameters(names[id(m)], m)]
        self._exit = [n for m in skeleton.exit for n in _parameters(names[id(m)], m)]
        stored = model.state_dict().keys() & dict(model.named_buffers()).keys()
        self._layer_buffers = [
            sorted(stored & {f"{names[id(layer)]}.{name}" for name, _ in layer.named_buffers()})
            for layer in skeleton.layers
        ]
        self._outer_buffers = sorted(stored.difference(*self._layer_buffers))
        self._aliases: dict[int, list[str]] = {}
        for name, parameter in model.named_parameters(remove_duplicate=False):
            self._aliases.setdefault(id(parameter), []).append(name)
        self._tied = {
            name: [other for other in group if other != name]
            for group in self._aliases.values()
            for name in group
            if len(group) > 1
        }

    def of(self, shard_range: ShardRange) -> Iterator[list[str]]:
        """List the parameters of each part of a range: what is loaded in one step."""
        if shard_range.start == 0:
            yield self._entry
        for layer in shard_range.layers:
            yield self._layers[layer]
        if shard_range.end == len(self._layers):
            yield self._exit

    def buffers(self, shard_range: ShardRange) -> list[str]:
        """List what is stored beside parameters: in these Layers, or outside of any."""
        own = [name for layer in shard_range.layers for name in self._layer_buffers[layer]]
        return own + self._outer_buffers

    def siblings_among(self, names: Sequence[str]) -> list[Siblings]:
        """Find the siblings whose first weight has one of these names."""
        return [self._siblings[name] for name in names if name in self._siblings]

    def together(self, names: Sequence[str]) -> list[list[str]]:
        """Part names by what shares an allocation.

        Weights of siblings lie side by side, so that they are one matrix as well, and so do their
        biases.
        """
        groups = [
            [f"{owner}.{kind}" for owner in owners]
            for owners, has_bias in map(self._owners_of, self.siblings_among(names))
            for kind in (("weight", "bias") if has_bias else ("weight",))
        ]
        grouped = {name for group in groups for name in group}
        return [*groups, [name for name in names if name not in grouped]]

    def weight_of(self, module: nn.Module) -> str:
        """Name a module's weight."""
        return f"{self._module_names[id(module)]}.weight"

    def matrices(self) -> dict[str, nn.Module]:
        """Find the linear maps of the Layers, by the names of their weights.

        Raises UnpackableWeightError where these are not nearly all that the Layers hold, such as in
        models whose experts are one fused parameter.
        """
        names = [name for layer in self._layers for name in layer]
        owners = {name: self._model.get_submodule(name.rpartition(".")[0]) for name in names}
        found = {n: m for n, m in owners.items() if is_linear(m) and n.endswith(".weight")}
        sizes = {name: self._model.get_parameter(name).numel() for name in names}
        share = sum(sizes[name] for name in found) / sum(sizes.values())
        if share < LEAST_LINEAR_SHARE:
            raise UnpackableWeightError(
                f"Only {share:.0%} of the Layers' weights are in linear maps, so quantizing them "
                "saves little; models with fused experts are like that."
            )
        return found

    def _owners_of(self, siblings: Siblings) -> tuple[list[str], bool]:
        return [self._module_names[id(m)] for m in siblings], siblings[0].bias is not None

    def layers(self, shard_range: ShardRange) -> list[str]:
        """List the parameters of the Layers alone."""
        return [name for layer in shard_range.layers for name in self._layers[layer]]

    def aliases(self, name: str) -> list[str]:
        return self._tied.get(name, [])

    def tied_to(self, name: str) -> str:
        """Another name of the same parameter, or this one."""
        return next(iter(self._tied.get(name, [])), name)


def _parameters(prefix: str, module: nn.Module) -> list[str]:
    return [f"{prefix}.{name}" for name, _ in module.named_parameters()]
