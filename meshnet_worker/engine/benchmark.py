"""How fast this device runs Layers: a made-up one at registration, real ones once they are loaded.

Speeds are in tokens per second through one Layer. Real Layers are measured one pass at a time, so
that nobody's Session waits for more than that.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRotaryEmbedding

from meshnet_common.shard_range import ShardRange
from meshnet_worker.engine.attention import NAME, FlatSegment
from meshnet_worker.engine.kv import SessionKv
from meshnet_worker.engine.shard import Shard
from meshnet_worker.engine_port import Event, LayersMeasured, MeasureLayers

MODEL = "llama-layer-1024"
DECODE_SECONDS = 0.5
PREFILL_SECONDS = 0.3
PREFILL_TOKENS = 128
DECODE_PASSES = 3500
WARM_UP_PASSES = 3
COPY_BYTES = 64 << 20
"""Beyond the caches of most CPUs."""
COPY_SECONDS = 0.2
MEASURED_LAYERS = 8
MEASURED_PASSES = 16
"""Decode passes over real Layers: far fewer than what makes compiling them worth while."""
MEASURED_TOKENS = 64

Pass = Callable[[int, int], object]
"""Runs so many tokens from a position on."""


@dataclass(frozen=True, slots=True)
class LayerSpeeds:
    """Tokens per second through one Layer."""

    decode: float
    prefill: float


NOT_MEASURED = LayerSpeeds(0.0, 0.0)


def made_up_speeds(device: torch.device) -> LayerSpeeds:
    """Measure a Llama-shaped Layer, about a second."""
    run = _made_up_layer(device)
    with torch.inference_mode():
        for position in range(WARM_UP_PASSES):
            run(position, 1)
        decode = _passes_per_second(device, run, 1, DECODE_SECONDS)
        run(0, PREFILL_TOKENS)
        prefill = _passes_per_second(device, run, PREFILL_TOKENS, PREFILL_SECONDS)
    return LayerSpeeds(decode, prefill * PREFILL_TOKENS)


def memory_bytes_per_second(device: torch.device) -> float:
    """Measure copying within the device's memory; what is read and written counts."""
    with torch.inference_mode():
        source = torch.ones(COPY_BYTES, dtype=torch.uint8, device=device)
        target = torch.empty_like(source)
        target.copy_(source)
        finish(device)
        started, copies = time.perf_counter(), 0
        while time.perf_counter() - started < COPY_SECONDS:
            target.copy_(source)
            finish(device)
            copies += 1
        return 2 * COPY_BYTES * copies / (time.perf_counter() - started)


def finish(device: torch.device) -> None:
    """Wait until the device has done what it was told."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@dataclass(slots=True)
class ShardBenchmark:
    """Measures some loaded Layers of a Shard, in as many steps as there are passes."""

    shard: Shard
    device: torch.device
    _decode_seconds: list[float] = field(default_factory=list)
    _prefill_seconds: list[float] = field(default_factory=list)
    _kv: SessionKv | None = None

    def step(self) -> LayerSpeeds | None:
        """Run one more pass; answers the speeds after the last one. Raises what the model does."""
        layers = self._layers
        if layers is None:
            return NOT_MEASURED
        if len(self._prefill_seconds) < 2:
            self._prefill_seconds.append(self._seconds(layers, 0, MEASURED_TOKENS))
            return None
        position = MEASURED_TOKENS + len(self._decode_seconds)
        self._decode_seconds.append(self._seconds(layers, position, 1))
        if len(self._decode_seconds) < MEASURED_PASSES:
            return None
        # The fastest pass, since whatever else the host does only ever slows one down.
        decode, prefill = min(self._decode_seconds), min(self._prefill_seconds)
        return LayerSpeeds(len(layers) / decode, len(layers) * MEASURED_TOKENS / prefill)

    @property
    def _layers(self) -> ShardRange | None:
        """Some loaded Layers, without the ends of the model where there are others."""
        loaded = self.shard.loaded
        if loaded is None:
            return None
        start, end = loaded.start, loaded.end
        if start == 0 and end > 1:
            start = 1
        if end == self.shard.layer_count and end - 1 > start:
            end -= 1
        return ShardRange(start, min(end, start + MEASURED_LAYERS))

    def _seconds(self, layers: ShardRange, position: int, tokens: int) -> float:
        if self._kv is None:
            self._kv = SessionKv.alone(MEASURED_TOKENS + MEASURED_PASSES, layers.layers)
        shape = (tokens, self.shard.hidden_size)
        rows = torch.randn(shape, dtype=self.shard.dtype, device=self.device)
        if layers.start == 0:
            rows = torch.zeros(tokens, dtype=torch.long, device=self.device)
        started = time.perf_counter()
        self.shard.run(layers, rows, [FlatSegment(self._kv, 0, tokens, position)], [])
        finish(self.device)
        return time.perf_counter() - started


class Measuring:
    """The measurement that is under way, if one is; a newer one takes its place."""

    def __init__(
        self,
        shards: Mapping[int, Shard],
        device: torch.device,
        send: Callable[[Event, bytes], None],
    ) -> None:
        self._shards = shards
        self._device = device
        self._send = send
        self._current: tuple[int, ShardBenchmark] | None = None

    @property
    def has_work(self) -> bool:
        return self._current is not None

    def add(self, command: MeasureLayers) -> None:
        """Begin, unless the Layers were dropped before the engine heard of it."""
        shard = self._shards.get(command.shard)
        if shard is not None:
            self._current = command.shard, ShardBenchmark(shard, self._device)

    def step(self) -> None:
        """Run one pass; a model that cannot be measured serves all the same."""
        assert self._current is not None
        number, benchmark = self._current
        speeds: LayerSpeeds | None
        try:
            speeds = benchmark.step()
        except Exception:  # noqa: BLE001 - a model's own code raises anything
            speeds = NOT_MEASURED
        if speeds is not None:
            self._current = None
            self._send(LayersMeasured(number, speeds.decode, speeds.prefill), b"")


def _passes_per_second(device: torch.device, run: Pass, tokens: int, seconds: float) -> float:
    finish(device)
    started, passes = time.perf_counter(), 0
    while time.perf_counter() - started < seconds and passes < DECODE_PASSES:
        run(WARM_UP_PASSES + passes if tokens == 1 else 0, tokens)
        passes += 1
    finish(device)
    return passes / (time.perf_counter() - started)


def _made_up_layer(device: torch.device) -> Pass:
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    config = LlamaConfig(
        hidden_size=1024,
        intermediate_size=2816,
        num_attention_heads=16,
        num_key_value_heads=4,
        num_hidden_layers=1,
    )
    config._attn_implementation = NAME  # noqa: SLF001 - how transformers itself sets it
    with torch.device(device):
        layer = LlamaDecoderLayer(config, layer_idx=0).to(dtype).eval()
        rope = LlamaRotaryEmbedding(config)
        hidden = torch.randn((1, PREFILL_TOKENS, config.hidden_size), dtype=dtype)
    kv = SessionKv.alone(WARM_UP_PASSES + DECODE_PASSES, (0,))

    def run(position: int, tokens: int) -> object:
        rows = hidden[:, :tokens]
        places = torch.arange(position, position + tokens, device=device).unsqueeze(0)
        segment = FlatSegment(kv, 0, tokens, position)
        turns = rope(rows, places)
        return layer(rows, position_embeddings=turns, flat_segments=(segment,))

    return run
