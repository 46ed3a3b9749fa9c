"""A Shard: the loaded Layers of one Variant, and one pass of a Batch through some of them.

Loading and dropping work Layer by Layer, so that the engine can run Batches in between.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from meshnet_common.shard_range import ShardRange
from meshnet_worker.engine.arena import allocate_together
from meshnet_worker.engine.attention import FlatSegment
from meshnet_worker.engine.checkpoint import Checkpoint, CheckpointError
from meshnet_worker.engine.siblings import Siblings, join_where_stacked, part
from meshnet_worker.engine.skeleton import Skeleton


@dataclass(frozen=True, slots=True)
class ShardSource:
    """Where a Shard's weights are, and the device and dtype they are run in."""

    folder: str
    dtype: torch.dtype
    device: torch.device


class Shard:
    """Layers of one Variant on the device."""

    def __init__(self, source: ShardSource) -> None:
        self.loaded: ShardRange | None = None
        self._source = source
        self._skeleton = Skeleton(source.folder, source.dtype)
        self._checkpoint = Checkpoint(source.folder, self._skeleton.model.base_model_prefix)
        self._parts = _Parts(self._skeleton)
        for module in self._skeleton.model.modules():
            for name, buffer in module.named_buffers(recurse=False):
                setattr(module, name, buffer.to(source.device))

    @property
    def dtype(self) -> torch.dtype:
        return self._source.dtype

    @property
    def layer_count(self) -> int:
        return self._skeleton.layer_count

    @property
    def vocabulary_size(self) -> int:
        return int(self._skeleton.config.get_text_config().vocab_size)

    @property
    def hidden_size(self) -> int:
        return int(self._skeleton.config.get_text_config().hidden_size)

    def check_loadable(self, shard_range: ShardRange) -> None:
        """Raise ValueError for Layers that the model lacks or that would leave a gap here."""
        if shard_range.end > self.layer_count:
            raise ValueError(f"{shard_range} is beyond the model's {self.layer_count} layers")
        if self.loaded is not None and not self.loaded.touches(shard_range):
            raise ValueError(f"a gap lies between {shard_range} and the loaded {self.loaded}")

    def load(self, shard_range: ShardRange) -> Iterator[int]:
        """Load Layers with embeddings or output head where they belong.

        Yields the bytes that each step put on the device; raises CheckpointError.
        """
        for names in self._parts.of(shard_range):
            yield self._materialise(names)
        self.loaded = self.loaded.union(shard_range) if self.loaded else shard_range

    def drop(self, shard_range: ShardRange) -> None:
        """Give Layers' memory back; raises ValueError when two runs of Layers would be left."""
        left = self.loaded.minus(shard_range) if self.loaded else ()
        if len(left) > 1:
            raise ValueError(f"dropping {shard_range} would split {self.loaded}")
        self.loaded = left[0] if left else None
        self.unload_unfinished()

    def unload_unfinished(self) -> None:
        """Give back whatever does not belong to the Layers that are loaded in full."""
        kept = {id(p) for p in self._parameters(self.loaded)} if self.loaded else set()
        for names in self._parts.of(ShardRange(0, self.layer_count)):
            unloaded = [name for name in names if id(self._parameter(name)) not in kept]
            for siblings in self._parts.siblings_among(unloaded):
                part(siblings)
            for name in unloaded:
                self._put(name, self._parameter(name).to("meta"))

    def bytes_of(self, shard_range: ShardRange) -> int:
        """Size on the device of a range with embeddings or head, each tensor counted once."""
        parameters = {id(p): p for p in self._parameters(shard_range)}.values()
        return sum(p.numel() * p.element_size() for p in parameters)

    @torch.inference_mode()
    def run(
        self,
        shard_range: ShardRange,
        rows: torch.Tensor,
        segments: Sequence[FlatSegment],
        sampled_rows: Sequence[int],
    ) -> torch.Tensor:
        """Run a flattened Batch through some loaded Layers.

        `rows` is token ids `[rows]` when the range starts at 0, else hidden states
        `[rows, hidden]`. Returns logits `[len(sampled_rows), vocabulary]` in float32 when the
        range ends the model and something is sampled, else hidden states `[rows, hidden]`.
        """
        named = {"input_ids" if shard_range.start == 0 else "inputs_embeds": rows.unsqueeze(0)}
        positions = [torch.arange(s.position, s.position + s.tokens) for s in segments]
        named["position_ids"] = torch.cat(positions).unsqueeze(0).to(self._source.device)
        ends_model = shard_range.end == self._skeleton.layer_count
        with self._skeleton.active(shard_range):
            if ends_model and sampled_rows:
                keep = torch.tensor(sampled_rows, device=self._source.device)
                output = self._skeleton.model(
                    **named, use_cache=False, flat_segments=segments, logits_to_keep=keep
                )
                return output.logits[0].float()  # type: ignore[no-any-return]  # transformers' output
            output = self._skeleton.base(**named, use_cache=False, flat_segments=segments)
        return output.last_hidden_state[0]  # type: ignore[no-any-return]  # transformers' output

    def _materialise(self, names: Sequence[str]) -> int:
        missing = [name for name in names if self._parameter(name).device.type == "meta"]
        shapes = [self._parameter(name).shape for name in missing]
        tensors = allocate_together(shapes, self._source.dtype, self._source.device)
        for name, tensor in zip(missing, tensors, strict=True):
            self._read_into(tensor, name)
            self._put(name, tensor)
        for siblings in self._parts.siblings_among(missing):
            join_where_stacked(siblings)
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)

    def _read_into(self, tensor: torch.Tensor, name: str) -> None:
        stored = name if self._checkpoint.stored_name(name) else self._parts.tied_to(name)
        read = self._checkpoint.read(stored)
        if read.shape != tensor.shape:
            shapes = f"{tuple(read.shape)} instead of {tuple(tensor.shape)}"
            raise CheckpointError(f"{stored} has the shape {shapes}.")
        tensor.copy_(read)

    def _put(self, name: str, tensor: torch.Tensor) -> None:
        parameter = nn.Parameter(tensor, requires_grad=False)
        for alias in (name, *self._parts.aliases(name)):
            owner, _, leaf = alias.rpartition(".")
            module = self._skeleton.model.get_submodule(owner)
            module.register_parameter(leaf, parameter)

    def _parameters(self, shard_range: ShardRange) -> list[nn.Parameter]:
        return [self._parameter(name) for part in self._parts.of(shard_range) for name in part]

    def _parameter(self, name: str) -> nn.Parameter:
        return self._skeleton.model.get_parameter(name)


class _Parts:
    """Which parameters belong to which Layer, to the entry and to the exit of a model."""

    def __init__(self, skeleton: Skeleton) -> None:
        model = skeleton.model
        names = {id(module): name for name, module in model.named_modules()}
        self._siblings = {f"{names[id(group[0])]}.weight": group for group in skeleton.siblings}
        together = [
            f"{names[id(module)]}.{kind}"
            for group in skeleton.siblings
            for kind in ("weight", "bias")
            for module in group
        ]
        # Siblings lie side by side, so that their weights are one matrix as well.
        order = {name: place for place, name in enumerate(together)}
        self._layers = [
            sorted(_parameters(names[id(layer)], layer), key=lambda n: order.get(n, len(order)))
            for layer in skeleton.layers
        ]
        self._entry = [n for m in skeleton.entry for n in _parameters(names[id(m)], m)]
        self._exit = [n for m in skeleton.exit for n in _parameters(names[id(m)], m)]
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
        if shard_range.start == 0:
            yield self._entry
        for layer in shard_range.layers:
            yield self._layers[layer]
        if shard_range.end == len(self._layers):
            yield self._exit

    def siblings_among(self, names: Sequence[str]) -> list[Siblings]:
        """Find the siblings whose first weight has one of these names."""
        return [self._siblings[name] for name in names if name in self._siblings]

    def aliases(self, name: str) -> list[str]:
        return self._tied.get(name, [])

    def tied_to(self, name: str) -> str:
        return next(iter(self._tied.get(name, [])), name)


def _parameters(prefix: str, module: nn.Module) -> list[str]:
    return [f"{prefix}.{name}" for name, _ in module.named_parameters()]
