"""Small instances for the benchmark's own tests."""

from collections.abc import Mapping

from bench.placement.instances import Device, Instance, Link, Node
from meshnet_common.ids import WorkerId
from meshnet_common.shard_range import ShardRange

LAYER_BYTES = 1_000_000


def instance(
    layers: int,
    rates: Mapping[str, tuple[float, ...]],
    *,
    bytes_per_second: float = 1e9,
    memory_layers: int = 6,
) -> Instance:
    """Build Workers by name; a step takes 100 ms a Layer, 0.1 ms more for each prompt token."""
    link = Link(0.001, bytes_per_second)
    return Instance(
        name="made",
        layers=layers,
        layer_bytes=LAYER_BYTES,
        kv_bytes_per_token_per_layer=1000,
        hop_bytes_per_token=1024,
        nodes=tuple(
            Node(WorkerId(name), _device(name, table, memory_layers), "site")
            for name, table in rates.items()
        ),
        inside=link,
        between=link,
        mean_prompt_tokens=40,
        mean_output_tokens=20,
    )


def placed(**runs: tuple[int, int]) -> dict[WorkerId, ShardRange]:
    return {WorkerId(name): ShardRange(*run) for name, run in runs.items()}


def _device(name: str, rates: tuple[float, ...], memory_layers: int) -> Device:
    return Device(
        name=name,
        memory_bytes=memory_layers * LAYER_BYTES,
        prompts_at_once=20,
        decode_knots=((0, 0.0), (1, 0.1), (500, 0.1)),
        prompt_knots=((0, 0.0), (6000, 0.6)),
        rates=rates,
    )
