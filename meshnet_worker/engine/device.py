"""The device: which one, its memory, and a short benchmark of how fast it runs Layers."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import psutil
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRotaryEmbedding

from meshnet_worker.engine.attention import NAME, FlatSegment
from meshnet_worker.engine.kv import SessionKv
from meshnet_worker.engine.quantization import offered_quantizations
from meshnet_worker.engine_port import DeviceProbed

BENCHMARK_MODEL = "llama-layer-1024"
BENCHMARK_SECONDS = 0.5
BENCHMARK_POSITIONS = 4096
WARM_UP_PASSES = 3
CPU_BLOCK_POSITIONS = 64
CUDA_BLOCK_POSITIONS = 256
"""FlashAttention-2 takes KV Blocks of a multiple of 256 positions only."""


@dataclass(frozen=True, slots=True)
class _Memory:
    name: str
    free_bytes: int
    total_bytes: int


def choose_device(wanted: str) -> torch.device:
    """`auto` is the first CUDA device, else the CPU; raises ValueError if it is not there."""
    if wanted == "auto":
        return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    device = torch.device(wanted)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"{wanted} was asked for, but torch sees no CUDA device")
    return device


def probe(device: torch.device) -> DeviceProbed:
    """Read the device's memory and measure decode speed, in layer-tokens per second."""
    memory = _memory(device)
    return DeviceProbed(
        device=str(device),
        name=memory.name,
        free_bytes=memory.free_bytes,
        total_bytes=memory.total_bytes,
        tokens_per_second=_layer_tokens_per_second(device),
        benchmark_model=BENCHMARK_MODEL,
        block_positions=block_positions(device),
        quantizations=offered_quantizations(),
    )


def block_positions(device: torch.device) -> int:
    """How many positions one KV Block holds."""
    return CUDA_BLOCK_POSITIONS if device.type == "cuda" else CPU_BLOCK_POSITIONS


def _memory(device: torch.device) -> _Memory:
    if device.type == "cuda":
        free_bytes, total_bytes = torch.cuda.mem_get_info(device)
        return _Memory(torch.cuda.get_device_name(device), free_bytes, total_bytes)
    memory = psutil.virtual_memory()
    return _Memory("CPU", memory.available, memory.total)


def _layer_tokens_per_second(device: torch.device) -> float:
    run = _benchmark_pass(device)
    with torch.inference_mode():
        for position in range(WARM_UP_PASSES):
            run(position)
        _finish(device)
        started = time.perf_counter()
        position = WARM_UP_PASSES
        while time.perf_counter() - started < BENCHMARK_SECONDS and position < BENCHMARK_POSITIONS:
            run(position)
            position += 1
        _finish(device)
        return (position - WARM_UP_PASSES) / (time.perf_counter() - started)


def _benchmark_pass(device: torch.device) -> Callable[[int], object]:
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
        hidden = torch.randn((1, 1, config.hidden_size), dtype=dtype)
    kv = SessionKv.alone(BENCHMARK_POSITIONS, (0,))

    def run(position: int) -> object:
        turns = rope(hidden, torch.tensor([[position]], device=device))
        segment = FlatSegment(kv, 0, 1, position)
        return layer(hidden, position_embeddings=turns, flat_segments=(segment,))

    return run


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
