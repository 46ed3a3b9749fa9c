"""Sorts a checkpoint's tensors into Layers, embeddings and output head, by their names; pure.

No list of architectures: Layers are the tensors whose names share what stands before their first
number, where these numbers run from 0 to the last Layer (`model.layers.N.`, `transformer.h.N.`).
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from meshnet_common.weights.errors import ConfigError
from meshnet_common.weights.headers import TensorEntry

# Each part matches in one way only: a long name without a number must not take for ever.
_NUMBERED = re.compile(r"(?P<prefix>(?:[0-9]*[^.0-9][^.]*\.)*)(?P<number>[0-9]+)\.")
_EMBEDDING = re.compile(r"emb|^wte$|^wpe$")
_POSITIONS = re.compile(r"pos|^wpe$")
_OUTPUT = frozenset({"lm_head", "embed_out", "output"})
# Masks and tables that some checkpoints save and no loader takes: they cost a Worker nothing.
_BUFFERS = ("masked_bias", "inv_freq", "position_ids")


@dataclass(frozen=True, slots=True)
class CheckpointOutline:
    """Tensors by place; `output` is empty when the token embedding serves as output head too."""

    layers: tuple[tuple[TensorEntry, ...], ...]
    token_embedding: TensorEntry
    other_embeddings: tuple[TensorEntry, ...]
    norms: tuple[TensorEntry, ...]
    output: tuple[TensorEntry, ...]

    @property
    def tensors(self) -> tuple[TensorEntry, ...]:
        layers = (tensor for layer in self.layers for tensor in layer)
        embeddings = (self.token_embedding, *self.other_embeddings)
        return (*layers, *embeddings, *self.norms, *self.output)


def outline_checkpoint(
    tensors: Iterable[TensorEntry], layer_count: int | None
) -> CheckpointOutline:
    """Sort the tensors; raises ConfigError when they are not those of so many Layers.

    None is a model that is never split: all but its embeddings is one Layer.
    """
    kept = [tensor for tensor in tensors if not _is_buffer(tensor)]
    if layer_count is None:
        return _undivided(kept)
    prefix = _layer_prefix(kept, layer_count)
    layers: list[list[TensorEntry]] = [[] for _ in range(layer_count)]
    outside: list[TensorEntry] = []
    for tensor in kept:
        place = _NUMBERED.match(tensor.name)
        if place is None:
            outside.append(tensor)
        elif place["prefix"] == prefix and int(place["number"]) < layer_count:
            layers[int(place["number"])].append(tensor)
    return _with_outside(tuple(map(tuple, layers)), outside)


def _undivided(tensors: Iterable[TensorEntry]) -> CheckpointOutline:
    inside: list[TensorEntry] = []
    embeddings: list[TensorEntry] = []
    for tensor in tensors:
        is_numbered = _NUMBERED.match(tensor.name) is not None
        is_table = len(tensor.shape) == 2 and _has_part(tensor, _EMBEDDING)
        (embeddings if is_table and not is_numbered else inside).append(tensor)
    return _with_outside((tuple(inside),), embeddings)


def _layer_prefix(tensors: Iterable[TensorEntry], layer_count: int) -> str:
    numbers: dict[str, set[int]] = {}
    elements: dict[str, int] = {}
    for tensor in tensors:
        if place := _NUMBERED.match(tensor.name):
            numbers.setdefault(place["prefix"], set()).add(int(place["number"]))
            elements[place["prefix"]] = elements.get(place["prefix"], 0) + tensor.elements
    fitting = [prefix for prefix, seen in numbers.items() if seen.issuperset(range(layer_count))]
    if not fitting:
        seen = ", ".join(f"{prefix}N ({len(found)})" for prefix, found in sorted(numbers.items()))
        raise ConfigError(
            f"config.json says {layer_count} layers; the tensors are numbered otherwise: "
            f"{seen or 'none is numbered'}."
        )
    return max(fitting, key=lambda prefix: elements[prefix])


def _with_outside(
    layers: tuple[tuple[TensorEntry, ...], ...], outside: list[TensorEntry]
) -> CheckpointOutline:
    output = [tensor for tensor in outside if _OUTPUT & set(tensor.name.split("."))]
    embeddings = [t for t in outside if t not in output and _has_part(t, _EMBEDDING)]
    tokens = [t for t in embeddings if len(t.shape) == 2 and not _has_part(t, _POSITIONS)]
    if not tokens:
        raise ConfigError("Among its tensors there is no token embedding.")
    token_embedding = max(tokens, key=lambda tensor: tensor.elements)
    return CheckpointOutline(
        layers=layers,
        token_embedding=token_embedding,
        other_embeddings=tuple(t for t in embeddings if t != token_embedding),
        norms=tuple(t for t in outside if t not in output and t not in embeddings),
        output=tuple(output),
    )


def _has_part(tensor: TensorEntry, pattern: re.Pattern[str]) -> bool:
    return any(pattern.search(part) for part in tensor.name.split("."))


def _is_buffer(tensor: TensorEntry) -> bool:
    is_mask = len(tensor.shape) == 4 and tensor.shape[:2] == (1, 1)
    return is_mask or tensor.name.endswith(_BUFFERS)
