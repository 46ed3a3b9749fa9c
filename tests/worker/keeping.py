"""A keeper on the shared engine, for tests of what it does and of where weights come from."""

import asyncio
from pathlib import Path

import msgspec
import pytest

from meshnet_common.errors import MeshnetError
from meshnet_common.presets import ModelPreset
from meshnet_common.protocol.messages import Directive, ShardState
from meshnet_common.shard_range import ShardRange
from meshnet_common.weights.manifest import Manifest
from meshnet_worker.engine_supervisor import EngineSlot
from meshnet_worker.keeper import ShardKeeper
from meshnet_worker.kv_budget import KvBudget
from meshnet_worker.sessions import SessionTable
from meshnet_worker.shard_weights import ShardWeights
from meshnet_worker.shards import ShardTable
from meshnet_worker.weights.library import WeightsLibrary, WeightsSettings
from tests.common.builders import preset, variant
from tests.worker.builders import LEASE_SECONDS
from tests.worker.engines import SharedEngine
from tests.worker.models import HIDDEN_SIZE, LAYERS
from tests.worker.waiting import SECONDS

SIZE = variant().range_bytes(ShardRange(0, LAYERS))


class Keeping:
    """A keeper on the shared engine, and the tables that it keeps."""

    def __init__(
        self,
        shared: SharedEngine,
        folder: Path,
        budget_bytes: int = 10 * SIZE,
        source: str | None = None,
        manifest: Manifest | None = None,
    ) -> None:
        plain = preset(source=source or str(folder), hidden_size=HIDDEN_SIZE)
        self.model: ModelPreset = msgspec.structs.replace(plain, manifest=manifest)
        self.shards = ShardTable()
        self.shards._numbers = next(shared.numbers)
        self.sessions = SessionTable(LEASE_SECONDS)
        self.kv = KvBudget(budget_bytes, block_positions=1)
        self.slot = EngineSlot()
        self.slot.put(shared.engine)
        self.engine = shared.engine
        self.library = WeightsLibrary(WeightsSettings(folder.parent / "fetched"))
        self.weights = ShardWeights(self.library)
        self.keeper = ShardKeeper(self.shards, self.sessions, self.kv, self.slot, self.weights)

    async def obey(self, told: Directive) -> None:
        async with asyncio.timeout(SECONDS):
            await self.keeper.obey(told, self.fetch_preset)

    async def fetch_preset(self, name: str) -> ModelPreset:
        assert name == self.model.name
        return self.model

    async def refuse(self, told: Directive, error: type[MeshnetError]) -> str:
        with pytest.raises(error) as caught:
            await self.obey(told)
        return str(caught.value)

    @property
    def ready(self) -> ShardRange | None:
        shard = self.shards.find("tiny", "float32")
        return shard.ready if shard else None

    @property
    def weight_bytes(self) -> int:
        """What the KV budget takes the weights to be."""
        return self.kv.weight_bytes

    def size_of(self, start: int, end: int) -> int:
        return self.model.variants[0].range_bytes(ShardRange(start, end))

    def states(self) -> list[tuple[ShardState, int, int]]:
        return [(r.state, r.start_layer, r.end_layer) for r in self.shards.reports()]
