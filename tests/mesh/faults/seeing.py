"""What the Tracker sees of its Workers, as far as fault tests need it."""

import msgspec

from meshnet_common.shard_range import ShardRange
from tests.mesh.harness import get


class SeenWorker(msgspec.Struct):
    """What the Tracker says of a Worker."""

    worker_id: str
    state: str
    shards: list["SeenShard"]


class SeenShard(msgspec.Struct):
    """And of what it serves."""

    start_layer: int
    end_layer: int
    state: str


class _SeenWorkers(msgspec.Struct):
    workers: list[SeenWorker]


def seen_workers(tracker_url: str) -> list[SeenWorker]:
    """All Workers that the Tracker knows, lost ones included."""
    return msgspec.json.decode(get(f"{tracker_url}/v1/workers").body, type=_SeenWorkers).workers


def ready_range(seen: SeenWorker) -> ShardRange | None:
    """Which Layers it is counted on for."""
    if seen.state == "lost":
        return None
    ready = (shard for shard in seen.shards if shard.state == "ready")
    return next((ShardRange(shard.start_layer, shard.end_layer) for shard in ready), None)
