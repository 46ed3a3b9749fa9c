"""What the engine is told to load of a Shard, and whether that has the size that was expected."""

import structlog

from meshnet_common.shard_range import ShardRange
from meshnet_worker.engine_port import LayersLoaded, LoadLayers
from meshnet_worker.shards import LocalShard

SIZE_TOLERANCE = 0.05
"""A Layer that takes this much more or less than the preset says is worth a warning."""

log = structlog.get_logger()


def load_command(shard: LocalShard, layers: ShardRange) -> LoadLayers:
    """Name the Layers and where their weights are."""
    return LoadLayers(
        shard=shard.number,
        folder=shard.folder,
        dtype=shard.variant.wire_dtype,
        start=layers.start,
        end=layers.end,
        quantization=shard.variant.quantization,
        gguf=shard.variant.gguf,
    )


def compare_sizes(shard: LocalShard, loaded: LayersLoaded) -> None:
    """Warn where the device needed much more or less than the preset says."""
    expected_bytes = sum(shard.variant.layer_bytes[loaded.start : loaded.end])
    facts = {"model": shard.key[0], "variant": shard.key[1], "measured_bytes": loaded.layer_bytes}
    if abs(loaded.layer_bytes - expected_bytes) > SIZE_TOLERANCE * expected_bytes:
        log.warning("layers differ from the preset's figure", **facts, preset_bytes=expected_bytes)
    else:
        log.debug("layers have the preset's size", **facts, preset_bytes=expected_bytes)
