"""Learns how a model is built by watching passes on the meta device: no names, no weights.

What runs before the first Layer is the entry, what runs after the last is the exit. A pass also
shows whether a model may be cut between its Layers at all: everything that a Layer reads must come
from its hidden states, from positions, or from its own weights. That is seen by autograd: tensors
that other Hops would have computed are marked as needing a gradient, and the mark must not come
through.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_flatten, tree_map

from meshnet_common.errors import MeshnetError
from meshnet_worker.engine.data_free import data_free
from meshnet_worker.engine.siblings import Siblings, watched_linears

PROBE_TOKENS = 13
"""A number that no width of a model is, so that an output's shape tells where the rows are."""


class UnsupportedModelError(MeshnetError):
    """The model cannot be run in single Layers by this release."""


@dataclass(slots=True)
class Structure:
    """What the passes showed.

    `hidden` is where a Layer takes hidden states: the place among its arguments, or the name.
    `returned` is the length of the tuple that a Layer returns, 0 for the hidden states alone.
    `entry_outputs` gives the shape and dtype of what each module of the entry returns, with
    PROBE_TOKENS where the rows are. `kv_values` are the numbers that each Layer stores per position
    in a flattened Batch. `token_by_token` is true of models that cannot continue with a chunk.
    """

    hidden: int | str = 0
    returned: int = 0
    entry: tuple[nn.Module, ...] = ()
    exit: tuple[nn.Module, ...] = ()
    entry_outputs: dict[nn.Module, Any] = field(default_factory=dict)
    siblings: tuple[Siblings, ...] = ()
    kv_values: tuple[int, ...] = ()
    token_by_token: bool = False

    def hidden_of(self, given: tuple[Any, ...], named: Mapping[str, Any]) -> Any:
        """The hidden states among a Layer's arguments."""
        return named[self.hidden] if isinstance(self.hidden, str) else given[self.hidden]


def accepts(model: nn.Module, name: str) -> bool:
    """Whether a model's `forward` knows an argument, itself or through its base model's."""
    forwards = (model.forward, getattr(model, "base_model", model).forward)
    return any(name in inspect.signature(forward).parameters for forward in forwards)


Pass = Callable[[torch.Tensor, torch.Tensor], object]
"""Runs the whole model on ids and positions, both `[1, PROBE_TOKENS]`."""


def structure_of(model: nn.Module, layers: tuple[nn.Module, ...], run: Pass) -> Structure:
    """Watch passes of a model whose parameters are on the meta device.

    Raises UnsupportedModelError when the model may not be cut between its Layers, and whatever the
    model's own code raises.
    """
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    # Marked Layers alternate, so what leaks past a Layer meets one that must be free of marks. What
    # a pass leaves in a module meets the next pass.
    with set_apart(model, "meta"):
        structures = [_watch(model, layers, run, parity) for parity in (0, 1)]
    return structures[-1]


def _watch(model: nn.Module, layers: tuple[nn.Module, ...], run: Pass, parity: int) -> Structure:
    watch = _Watch(model, layers, parity)
    ids = torch.zeros((1, PROBE_TOKENS), dtype=torch.long, device="meta")
    positions = torch.arange(PROBE_TOKENS, device="meta").unsqueeze(0)
    watch.ids = ids
    with (
        torch.enable_grad(),
        watched_linears(layers) as siblings,
        watch.hooked(),
        data_free(),
    ):
        output = run(ids, positions)
    watch.check_end(output)
    watch.structure.siblings = tuple(siblings)
    return watch.structure


class _Watch:
    """The hooks of one pass, and what they saw."""

    def __init__(self, model: nn.Module, layers: tuple[nn.Module, ...], parity: int) -> None:
        self.structure = Structure()
        self.ids: torch.Tensor | None = None
        self._layers = layers
        self._parity = parity
        self._done = 0
        self._inside = False
        self._hidden: torch.Tensor | None = None
        self._returned: list[torch.Tensor] = []
        self._entry: dict[nn.Module, Any] = {}
        self._exit: dict[nn.Module, None] = {}
        inner = {id(module) for layer in layers for module in layer.modules()}
        self._outer = [
            module
            for module in model.modules()
            if id(module) not in inner and any(True for _ in module.parameters(recurse=False))
        ]

    @contextmanager
    def hooked(self) -> Iterator[None]:
        handles = [
            handle
            for layer in self._layers
            for handle in (
                layer.register_forward_pre_hook(self._enter, with_kwargs=True),
                layer.register_forward_hook(self._leave),
            )
        ]
        handles += [module.register_forward_hook(self._outside) for module in self._outer]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def check_end(self, output: object) -> None:
        if self._done != len(self._layers):
            raise UnsupportedModelError(f"{len(self._layers)} layers ran as {self._done}.")
        if not self._marks(len(self._layers) - 1) and _is_marked(output):
            raise UnsupportedModelError(
                "What follows its last layer reads more than that layer's hidden states."
            )
        self.structure.entry = tuple(self._entry)
        self.structure.exit = tuple(self._exit)
        self.structure.entry_outputs = self._entry

    def _marks(self, layer: int) -> bool:
        return layer % 2 == self._parity

    def _enter(
        self, layer: nn.Module, given: tuple[Any, ...], named: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        if self._done == len(self._layers) or layer is not self._layers[self._done]:
            raise UnsupportedModelError("Its layers do not run once each and in order.")
        self._inside = True
        arguments: dict[int | str, Any] = dict(enumerate(given))
        arguments.update(named)
        self._find_hidden(arguments, bool(given))
        others = {k: v for k, v in arguments.items() if k != self.structure.hidden}
        leaves = {id(leaf) for leaf in tree_flatten(others)[0] if isinstance(leaf, torch.Tensor)}
        if id(self.ids) in leaves:
            raise UnsupportedModelError("Its layers read token ids.")
        if leaves & {id(tensor) for tensor in self._returned}:
            raise UnsupportedModelError("Its layers hand on more than hidden states.")
        if _is_marked(others):
            raise UnsupportedModelError(
                "Its layers read more of what ran before them than hidden states."
            )
        if self._done > 0:
            return None
        # The first Layer's input is made anew, so that the entry's marks end here.
        fresh = _fresh(arguments[self.structure.hidden], False)
        if given:
            return (fresh, *given[1:]), named
        return given, {**named, "hidden_states": fresh}

    def _find_hidden(self, arguments: Mapping[int | str, Any], is_positional: bool) -> None:
        if self._done == 0:
            self.structure.hidden = 0 if is_positional else "hidden_states"
        hidden = arguments.get(self.structure.hidden)
        if not isinstance(hidden, torch.Tensor):
            raise UnsupportedModelError("Its layers take no hidden states.")
        if self._done > 0 and hidden is not self._hidden:
            raise UnsupportedModelError("It changes the hidden states between its layers.")

    def _leave(self, _layer: nn.Module, _given: object, output: Any) -> Any:
        is_tuple = isinstance(output, tuple)
        hidden = output[0] if is_tuple else output
        if not isinstance(hidden, torch.Tensor):
            raise UnsupportedModelError("Its layers return no hidden states.")
        came_marked = self._done > 0 and self._marks(self._done - 1)
        if not came_marked and hidden.requires_grad:
            raise UnsupportedModelError("Its layers share what they compute, behind their inputs.")
        self.structure.returned = len(output) if is_tuple else 0
        others = tree_flatten(output[1:])[0] if is_tuple else []
        self._returned += [leaf for leaf in others if isinstance(leaf, torch.Tensor)]
        self._hidden = _fresh(hidden, self._marks(self._done))
        self._done += 1
        self._inside = False
        return (self._hidden, *output[1:]) if is_tuple else self._hidden

    def _outside(self, module: nn.Module, _given: object, output: Any) -> Any:
        if self._inside or 0 < self._done < len(self._layers):
            raise UnsupportedModelError("Its layers share a part that lies outside of them.")
        if self._done:
            self._exit[module] = None
            return None
        self._entry[module] = tree_map(_template, output)
        return tree_map(lambda leaf: _fresh(leaf, True) if _is_float(leaf) else leaf, output)


@contextmanager
def set_apart(model: nn.Module, device: str) -> Iterator[None]:
    """Let buffers be copies on a device inside the block, and forget all that passes leave behind.

    Models keep more than buffers between passes: tables as plain attributes, the longest position.
    """
    own = [vars(module) for module in model.modules()]
    own += [value for held in own for value in held.values() if isinstance(value, dict)]
    kept = [(held, dict(held)) for held in own]
    for module in model.modules():
        for name, buffer in module.named_buffers(recurse=False):
            setattr(module, name, buffer.to(device, copy=True))
    try:
        yield
    finally:
        for held, before in kept:
            held.clear()
            held.update(before)


@contextmanager
def replaced_forwards(forwards: Mapping[nn.Module, Callable[..., object]]) -> Iterator[None]:
    """Let modules do something else inside the block."""
    own: dict[nn.Module, Any] = {module: vars(module).get("forward") for module in forwards}
    for module, forward in forwards.items():
        # An attribute of the instance: the module keeps its type and everything else.
        vars(module)["forward"] = forward
    try:
        yield
    finally:
        for module, kept in own.items():
            if kept is None:
                del vars(module)["forward"]
            else:
                vars(module)["forward"] = kept


def zeros_like_template(template: Any, rows: torch.Tensor) -> Any:
    """Make what a module of the entry returns, of zeros, for as many rows and on their device."""

    def zeros(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        shape = [len(rows) if size == PROBE_TOKENS else size for size in leaf.shape]
        return torch.zeros(shape, dtype=leaf.dtype, device=rows.device)

    return tree_map(zeros, template)


def _fresh(tensor: torch.Tensor, is_marked: bool) -> torch.Tensor:
    fresh = tensor.detach()
    # Not a leaf, so that the model may write into it.
    return fresh.requires_grad_().clone() if is_marked else fresh.clone()


def _is_float(leaf: object) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.is_floating_point()


def _is_marked(values: object) -> bool:
    leaves = tree_flatten(dict(values) if isinstance(values, Mapping) else values)[0]
    return any(isinstance(leaf, torch.Tensor) and leaf.requires_grad for leaf in leaves)


def _template(leaf: object) -> object:
    return torch.empty_like(leaf, device="meta") if isinstance(leaf, torch.Tensor) else leaf
