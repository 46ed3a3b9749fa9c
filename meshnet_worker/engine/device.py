"""The device: which one, its memory, and what a short benchmark found."""

import time
from dataclasses import dataclass

import psutil
import torch

from meshnet_worker.engine.benchmark import MODEL, made_up_speeds, memory_bytes_per_second
from meshnet_worker.engine.quantization import offered_quantizations
from meshnet_worker.engine_port import DeviceProbed

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
    if device == torch.device("cuda"):
        # Tensors say where they are by number, and are compared with this.
        device = torch.device("cuda", 0)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"{wanted} was asked for, but torch sees no CUDA device")
    return device


def probe(device: torch.device) -> DeviceProbed:
    """Read the device's memory, and measure how fast it and a Layer on it are; two seconds."""
    started = time.perf_counter()
    memory = _memory(device)
    speeds = made_up_speeds(device)
    bandwidth = memory_bytes_per_second(device)
    return DeviceProbed(
        device=str(device),
        name=memory.name,
        free_bytes=memory.free_bytes,
        total_bytes=memory.total_bytes,
        tokens_per_second=speeds.decode,
        benchmark_model=MODEL,
        block_positions=block_positions(device),
        scratch_blocks=scratch_blocks(device),
        quantizations=offered_quantizations(),
        prefill_tokens_per_second=speeds.prefill,
        memory_bytes_per_second=bandwidth,
        seconds=time.perf_counter() - started,
    )


def block_positions(device: torch.device) -> int:
    """How many positions one KV Block holds."""
    return CUDA_BLOCK_POSITIONS if device.type == "cuda" else CPU_BLOCK_POSITIONS


def scratch_blocks(device: torch.device) -> int:
    """How many KV Blocks each Layer has beside those of Sessions: for rows that fill up a graph."""
    return 1 if device.type == "cuda" else 0


def _memory(device: torch.device) -> _Memory:
    if device.type == "cuda":
        free_bytes, total_bytes = torch.cuda.mem_get_info(device)
        return _Memory(torch.cuda.get_device_name(device), free_bytes, total_bytes)
    memory = psutil.virtual_memory()
    return _Memory("CPU", memory.available, memory.total)
