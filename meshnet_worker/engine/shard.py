"""A Shard: the loaded Layers of one Variant, and one pass of a Batch through some of them.

Loading and dropping work Layer by Layer, so that the engine can run Batches in between.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from meshnet_common.shard_range import ShardRange
from meshnet_worker.engine import graphs
from meshnet_worker.engine.arena import allocate_together
from meshnet_worker.engine.attention import FlatSegment
from meshnet_worker.engine.checkpoint import Checkpoint, CheckpointError
from meshnet_worker.engine.compiled import TOLERANCES, DecodeCompiler
from meshnet_worker.engine.conversions import ConvertedCheckpoint
from meshnet_worker.engine.cuda_capture import CudaCapture
from meshnet_worker.engine.fixed import FixedRows
from meshnet_worker.engine.gguf_checkpoint import GgufCheckpoint
from meshnet_worker.engine.graph_proof import is_proved
from meshnet_worker.engine.packed import StoredWeights
from meshnet_worker.engine.parts import Parts
from meshnet_worker.engine.placed import PlacedWeights
from meshnet_worker.engine.quantization import PACKERS, QuantizedCheckpoint, Target
from meshnet_worker.engine.siblings import Siblings, join_where_stacked, part, prepack
from meshnet_worker.engine.skeleton import Skeleton
from meshnet_worker.engine.step_package import Passes, Step
from meshnet_worker.engine_port import Noted


@dataclass(frozen=True, slots=True)
class ShardSource:
    """Where a Shard's weights are, and how they are held and run.

    Weights are the folder's safetensors, or those of the file `gguf`; the configuration is always
    the folder's.
    """

    folder: str
    dtype: torch.dtype
    device: torch.device
    quantization: str = ""
    gguf: str = ""
    compiles: bool = True
    """Whether Decode Steps may be compiled."""


class Shard:
    """Layers of one Variant on the device; `note` hears what becomes of compiling its passes."""

    def __init__(
        self, source: ShardSource, note: Callable[[Noted], None] = lambda _noted: None
    ) -> None:
        self.loaded: ShardRange | None = None
        self.ran_compiled = False
        """Whether the last pass was a compiled or a captured one."""
        self._source = source
        self._skeleton = Skeleton(source.folder, source.dtype)
        self._parts = Parts(self._skeleton)
        self._weights = _open_weights(source, self._skeleton, self._parts)
        self._placed = PlacedWeights(self._skeleton.model, self._parts)
        for module in self._skeleton.model.modules():
            for name, buffer in module.named_buffers(recurse=False):
                setattr(module, name, buffer.to(source.device))
        self._compiler = DecodeCompiler(self._passes(), note) if self._may_compile else None
        capturing = graphs.Capturing(
            self._fixed_pass, self.dtype, partial(CudaCapture, source.device)
        )
        self._graphs = graphs.DecodeGraphs(capturing, note) if self._may_capture else None

    @property
    def folder(self) -> str:
        """Where its configuration and tokenizer are."""
        return self._source.folder

    @property
    def dtype(self) -> torch.dtype:
        return self._source.dtype

    @property
    def layer_count(self) -> int:
        return self._skeleton.layer_count

    @property
    def runs_alone(self) -> bool:
        """Whether segments run one by one through transformers' own Cache."""
        return self._skeleton.runs_alone

    @property
    def kv_values(self) -> tuple[int, ...]:
        """The numbers that each Layer stores per position; empty when it runs alone."""
        return self._skeleton.kv_values

    @property
    def vocabulary_size(self) -> int:
        return int(self._skeleton.config.get_text_config().vocab_size)

    @property
    def hidden_size(self) -> int:
        return int(self._skeleton.config.get_text_config().hidden_size)

    @property
    def _may_compile(self) -> bool:
        # Packed weights are unpacked by operators that no compiler sees through.
        is_dense = not self._source.gguf and self._source.quantization not in PACKERS
        has_kernels = self._source.device.type == "cpu" and self.dtype in TOLERANCES
        return self._source.compiles and is_dense and has_kernels and not self.runs_alone

    @property
    def _may_capture(self) -> bool:
        is_known = is_proved(self._source.device) and self.dtype in graphs.TOLERANCES
        return self._source.compiles and is_known and not self.runs_alone

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
        for name in self._parts.buffers(shard_range):
            if self._weights.holds(name):
                self._skeleton.model.get_buffer(name).copy_(self._weights.read(name))
        self.loaded = self.loaded.union(shard_range) if self.loaded else shard_range

    def drop(self, shard_range: ShardRange) -> None:
        """Give Layers' memory back; raises ValueError when two runs of Layers would be left."""
        left = self.loaded.minus(shard_range) if self.loaded else ()
        if len(left) > 1:
            raise ValueError(f"dropping {shard_range} would split {self.loaded}")
        self.loaded = left[0] if left else None
        self.forget_compiled()
        self.unload_unfinished()

    def forget_compiled(self) -> None:
        """Let go of what was compiled or captured, and end what is being compiled."""
        if self._graphs is not None:
            self._graphs.forget()
        if self._compiler is not None:
            self._compiler.forget()

    def lifelines(self) -> list[int]:
        """Descriptors that become readable when there is a compiled pass to take."""
        return self._compiler.lifelines() if self._compiler is not None else []

    def look_after_builds(self) -> None:
        """Take what has been compiled, without waiting."""
        if self._compiler is not None:
            self._compiler.look_after_builds()

    def unload_unfinished(self) -> None:
        """Give back whatever does not belong to the Layers that are loaded in full."""
        kept = set(self._names(self.loaded))
        for names in self._parts.of(ShardRange(0, self.layer_count)):
            unloaded = [name for name in names if name not in kept]
            for siblings in self._parts.siblings_among(unloaded):
                part(siblings)
            for name in unloaded:
                self._placed.take_out(name, kept)

    def bytes_of(self, shard_range: ShardRange) -> int:
        """Size on the device of a range with embeddings or head, each tensor counted once.

        Measured where it is loaded, else what loading it will take.
        """
        once = {self._placed.same(name): name for name in self._names(shard_range)}
        return sum(self._bytes(name) for name in once.values())

    def layer_bytes_of(self, shard_range: ShardRange) -> int:
        """The same for the Layers alone."""
        return sum(self._bytes(name) for name in self._parts.layers(shard_range))

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
        if self.loaded is None or not self.loaded.contains(shard_range):
            # torch computes with weights that are not there, and says nothing.
            raise ValueError(f"{shard_range} is not loaded, {self.loaded} is")
        self.ran_compiled = False

        def plain() -> torch.Tensor:
            return self._skeleton.run(shard_range, rows, segments, sampled_rows)

        is_sampled = len(sampled_rows) == len(segments)
        is_step = len(rows) == len(segments) and (is_sampled or not sampled_rows)
        faster = self._graphs or self._compiler
        if faster is None or not is_step:
            return plain()
        output, self.ran_compiled = faster.run(Step(shard_range, rows, segments, is_sampled), plain)
        return output

    def _passes(self) -> Passes:
        def weights() -> dict[str, torch.Tensor]:
            model = self._skeleton.model
            named = {**dict(model.named_parameters()), **dict(model.named_buffers())}
            return {name: t.detach() for name, t in named.items() if t.device.type != "meta"}

        over = partial(partial, self._skeleton.tensor_pass)
        return Passes(over, weights, self.dtype)

    def _fixed_pass(self, shard_range: ShardRange) -> graphs.FixedPass:
        def run(rows: torch.Tensor, fixed: FixedRows, sampled: torch.Tensor | None) -> torch.Tensor:
            return self._skeleton.tensor_pass(shard_range, rows, fixed.positions, sampled, fixed)

        return run

    def _materialise(self, names: Sequence[str]) -> int:
        missing = [name for name in names if not self._placed.holds(name)]
        packed = {n for n in missing if self._weights.packed_bytes(self._stored(n)) is not None}
        for name in packed:
            self._placed.put_packed(name, self._weights.packed(self._stored(name)))
        dense = [name for name in missing if name not in packed]
        # Siblings apart from the rest: once they are prepacked, nothing keeps their plain weights.
        for together in self._parts.together(dense):
            shapes = [self._placed.parameter(name).shape for name in together]
            tensors = allocate_together(shapes, self._source.dtype, self._source.device)
            for name, tensor in zip(together, tensors, strict=True):
                self._read_into(tensor, name)
                self._placed.put(name, tensor)
        for siblings in self._parts.siblings_among(dense):
            self._arrange(siblings)
        return sum(self._bytes(name) for name in missing)

    def _arrange(self, siblings: Siblings) -> None:
        prepacked = prepack(siblings)
        if not prepacked:
            join_where_stacked(siblings)
            return
        for module, weight in zip(siblings, prepacked, strict=True):
            self._placed.put_prepacked(self._parts.weight_of(module), weight)

    def _read_into(self, tensor: torch.Tensor, name: str) -> None:
        stored = self._stored(name)
        read = self._weights.read(stored)
        if read.shape != tensor.shape:
            shapes = f"{tuple(read.shape)} instead of {tuple(tensor.shape)}"
            raise CheckpointError(f"{stored} has the shape {shapes}.")
        tensor.copy_(read)

    def _stored(self, name: str) -> str:
        return name if self._weights.holds(name) else self._parts.tied_to(name)

    def _names(self, shard_range: ShardRange | None) -> list[str]:
        return [n for names in self._parts.of(shard_range) for n in names] if shard_range else []

    def _bytes(self, name: str) -> int:
        held = self._placed.size_bytes(name)
        if held is not None:
            return held
        packed_bytes = self._weights.packed_bytes(self._stored(name))
        if packed_bytes is not None:
            return packed_bytes
        return self._placed.parameter(name).numel() * self._source.dtype.itemsize


def _open_weights(source: ShardSource, skeleton: Skeleton, parts: Parts) -> StoredWeights:
    if source.gguf:
        return GgufCheckpoint(source.gguf, skeleton.config, source.dtype, source.device)
    stored = Checkpoint(source.folder, skeleton.model.base_model_prefix)
    checkpoint = ConvertedCheckpoint(stored, skeleton.model)
    if source.quantization not in PACKERS:
        return checkpoint
    target = Target(source.quantization, source.dtype, source.device)
    return QuantizedCheckpoint(checkpoint, parts.matrices(), target)
