"""The weights of this Worker's Shards: opened with a Shard, fetched before its Layers are loaded.

One fetch runs at a time, since the keeper carries out one directive at a time; whoever learns that
it is moot gives it up from outside. What it has brought stays on disk.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import structlog

from meshnet_common.edge.clock import loop_time
from meshnet_common.errors import MeshnetError
from meshnet_common.presets import ModelPreset
from meshnet_common.shard_range import ShardRange
from meshnet_worker.shards import LocalShard
from meshnet_worker.speeds import Arrival
from meshnet_worker.weights.library import ModelWeights, WeightsLibrary
from meshnet_worker.weights.progress import OnProgress
from meshnet_worker.weights.whole_files import WholeFiles

log = structlog.get_logger()


class FetchGivenUpError(MeshnetError):
    """The weights are not wanted any more."""


@dataclass(frozen=True, slots=True)
class _UnderWay:
    """What is being opened or fetched; all Layers may be meant before a range is known."""

    key: tuple[str, str]
    shard_range: ShardRange | None
    patience: asyncio.Timeout


class ShardWeights:
    """Opened models by the key of their Shard."""

    def __init__(self, library: WeightsLibrary) -> None:
        self._library = library
        self._models: dict[tuple[str, str], ModelWeights] = {}
        self._whole_files = WholeFiles()
        self._under_way: _UnderWay | None = None
        self._why: MeshnetError | None = None
        self.bytes_per_second = 0.0
        """How fast the weights of the last load came; 0 before the first."""

    async def open(self, preset: ModelPreset, quantization: str) -> str:
        """Find a preset's files; answers the folder that the engine reads. Raises MeshnetError."""
        key = preset.name, quantization
        async with self._giving_up(key, None):
            model = await self._library.open(preset)
        # What an engine's loss has left of an earlier load, whose locks would stay for good.
        if (before := self._models.pop(key, None)) is not None:
            before.keep(None)
        self._models[key] = model
        return str(model.folder)

    async def fetch(
        self, shard: LocalShard, shard_range: ShardRange, on_progress: OnProgress
    ) -> None:
        """Have a range's weights here; raises MeshnetError, also what `give_up` was told."""
        arrival = Arrival(loop_time())

        def heard(bytes_done: int, bytes_total: int) -> None:
            arrival.hear(bytes_done, loop_time())
            on_progress(bytes_done, bytes_total)

        async with self._giving_up(shard.key, shard_range):
            await self._fetch(shard, shard_range, heard)
        self.bytes_per_second = arrival.bytes_per_second or self.bytes_per_second

    async def _fetch(
        self, shard: LocalShard, shard_range: ShardRange, on_progress: OnProgress
    ) -> None:
        if shard.variant.gguf:
            variant = shard.variant
            await self._whole_files.check(variant.gguf, variant.gguf_sha256, on_progress)
        elif not await self._models[shard.key].fetch(shard_range, on_progress):
            log.warning(
                "no digest is known of these weights: they are loaded unchecked",
                model=shard.key[0],
                layers=str(shard_range),
                hint="`meshnet-tracker preset add --digests-from DIR` records digests",
            )

    def are_checked_in_pieces(self, shard: LocalShard) -> bool:
        """Whether a part of its weights can be known to be right before all are here."""
        return bool(shard.variant.gguf) or self._models[shard.key].is_checked_in_pieces

    def is_fetching(self, key: tuple[str, str], shard_range: ShardRange) -> bool:
        """Whether some of these Layers' weights are on their way."""
        work = self._under_way
        if work is None or work.key != key:
            return False
        return work.shard_range is None or work.shard_range.overlap(shard_range) is not None

    def give_up(self, why: MeshnetError) -> None:
        """End the work under way, if there is any; it then raises `why`."""
        if self._under_way is not None and self._why is None:
            self._why = why
            self._under_way.patience.reschedule(asyncio.get_running_loop().time())

    def keep_only(self, shards: Iterable[LocalShard]) -> None:
        """Let what no Shard holds be evicted."""
        held = {shard.key: shard.held for shard in shards}
        for key, model in tuple(self._models.items()):
            model.keep(held.get(key))
            if key not in held:
                del self._models[key]

    @asynccontextmanager
    async def _giving_up(
        self, key: tuple[str, str], shard_range: ShardRange | None
    ) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(None) as patience:
                self._under_way = _UnderWay(key, shard_range, patience)
                yield
        except TimeoutError:
            raise self._why or FetchGivenUpError from None
        finally:
            self._under_way = self._why = None
