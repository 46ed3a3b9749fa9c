"""Puts Layers on the device, piece by piece: fetched, checked for room, loaded, and then ready.

One load runs at a time. Whoever learns that it is moot gives it up from outside; what is ready of
it by then stays.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import structlog

from meshnet_common.edge.clock import loop_time
from meshnet_common.errors import MeshnetError
from meshnet_common.shard_range import ShardRange
from meshnet_worker.engine_port import MeasureLayers
from meshnet_worker.engine_process import EngineLostError, EngineProcess
from meshnet_worker.layer_loads import compare_sizes, load_command
from meshnet_worker.pieces import Pieces
from meshnet_worker.pool_sizes import PoolSizes
from meshnet_worker.shard_weights import ShardWeights
from meshnet_worker.shards import Loading, LocalShard, ShardTable
from meshnet_worker.text.tokenizer import TextCodec

log = structlog.get_logger()


class ShardLoads:
    """Loads of this Worker's Shards; `codecs` has the text of those that begin a model."""

    def __init__(self, shards: ShardTable, weights: ShardWeights, pools: PoolSizes) -> None:
        self.codecs: dict[tuple[str, str], TextCodec] = {}
        self._shards = shards
        self._weights = weights
        self._pools = pools
        self._under_way: LocalShard | None = None
        self._is_restoring = False
        self._given_up: dict[tuple[str, str], MeshnetError] = {}
        """Why the load of a Shard that is under way goes on no more."""

    async def load(self, engine: EngineProcess, shard: LocalShard, layers: ShardRange) -> None:
        """Make Layers ready beside those that are.

        Raises DirectiveRefusedError, ShardLoadError, EngineLostError, and what `give_up` was told.
        """
        try:
            with self._ending(shard):
                self._pools.check(shard, layers)
                await self._put_on_device(engine, shard, layers)
        finally:
            self._pools.divide_on(engine)
        log.info("shard ready", model=shard.key[0], variant=shard.key[1], layers=str(shard.ready))

    async def restore(self, engine: EngineProcess) -> None:
        """Load again what a lost engine had; raises EngineLostError.

        All of it is ready at once, at the end: until then nobody's commands reach the engine.
        """
        restored: list[tuple[LocalShard, ShardRange]] = []
        self._is_restoring = True
        try:
            for shard in self._shards:
                if shard.loading is not None:
                    layers = shard.loading.shard_range
                    if await self._is_restored(engine, shard, layers):
                        restored.append((shard, layers))
        finally:
            self._is_restoring = False
            for shard, layers in restored:
                shard.ready, shard.loading = layers, None
        self._pools.divide_on(engine)
        for shard, _ in restored:
            _measure(engine, shard)

    def give_up(self, key: tuple[str, str], layers: ShardRange, why: MeshnetError) -> None:
        """End the load of some of these Layers, if there is one; it then raises `why`.

        What is restored is all or nothing: it ends only if these are all of its Layers.
        """
        if self._is_restoring and not self._is_all(key, layers):
            return
        is_fetching = self._weights.is_fetching(key, layers)
        if is_fetching or self._is_loading(key, layers):
            # That an engine is gone weighs more.
            self._given_up.setdefault(key, why)
        if is_fetching:
            self._weights.give_up(why)

    def lose(self, why: MeshnetError) -> None:
        """End all loads: their engine is gone."""
        for shard in self._shards:
            self._given_up[shard.key] = why
        # Whoever fetches holds the lock that the restoration needs.
        self._weights.give_up(why)

    def forget(self, shard: LocalShard) -> None:
        """Take a Shard off the table of which nothing is left."""
        self._shards.remove(shard)
        # What comes under this name later may have another text.
        self.codecs.pop(shard.key, None)

    def _is_loading(self, key: tuple[str, str], layers: ShardRange) -> bool:
        loading = self._loading_of(key)
        return loading is not None and loading.overlap(layers) is not None

    def _is_all(self, key: tuple[str, str], layers: ShardRange) -> bool:
        loading = self._loading_of(key)
        return loading is not None and layers.contains(loading)

    def _loading_of(self, key: tuple[str, str]) -> ShardRange | None:
        shard = self._under_way
        if shard is None or shard.key != key or shard.loading is None:
            return None
        return shard.loading.shard_range

    async def _is_restored(
        self, engine: EngineProcess, shard: LocalShard, layers: ShardRange
    ) -> bool:
        try:
            with self._ending(shard):
                pieces = Pieces.whole(shard.variant, layers)
                await self._put_piece(engine, shard, pieces.next(None, loop_time()), pieces)
        except EngineLostError:
            raise
        except MeshnetError as error:
            # A Shard that cannot be had again must not take the Worker with it.
            log.warning("shard given up", model=shard.key[0], reason=str(error))
        except Exception:
            # A fault of ours must not do that either.
            log.exception("shard given up", model=shard.key[0])
        else:
            return True
        return False

    @contextmanager
    def _ending(self, shard: LocalShard) -> Iterator[None]:
        """Leave nothing of a load that fails but the Layers that are ready."""
        self._under_way = shard
        self._given_up.pop(shard.key, None)
        try:
            yield
        except EngineLostError:
            raise
        except Exception:
            shard.loading = None
            raise
        finally:
            self._under_way = None
            if shard.held is None:
                self.forget(shard)
            self._weights.keep_only(self._shards)

    async def _put_on_device(
        self, engine: EngineProcess, shard: LocalShard, layers: ShardRange
    ) -> None:
        pieces = self._pieces(shard, layers)
        while pieces.left is not None:
            begins = shard.ready is None
            piece = pieces.next(shard.ready, loop_time())
            await self._put_piece(engine, shard, piece, pieces)
            shard.ready = shard.ready.union(piece) if shard.ready else piece
            shard.loading = Loading(pieces.left, *pieces.progress(0, 0)) if pieces.left else None
            # What is ready may serve, but the rest stays spoken for.
            self._pools.divide_on(engine)
            if begins:
                _measure(engine, shard)

    def _pieces(self, shard: LocalShard, layers: ShardRange) -> Pieces:
        if not self._weights.are_checked_in_pieces(shard):
            # Layers must not serve before a file is here whole, and is the right one.
            return Pieces.whole(shard.variant, layers)
        return Pieces(shard.variant, layers, self._weights.bytes_per_second)

    async def _put_piece(
        self, engine: EngineProcess, shard: LocalShard, piece: ShardRange, pieces: Pieces
    ) -> None:
        self._check_wanted(shard)
        assert pieces.left is not None
        left, fetched_bytes, device_bytes = pieces.left, 0, shard.variant.range_bytes(piece)
        told_bytes = device_bytes

        def tell(bytes_done: int, bytes_total: int) -> None:
            nonlocal told_bytes
            told_bytes = bytes_total
            # After a loss it is the restoration's to say what there is.
            if shard.key not in self._given_up:
                shard.loading = Loading(left, *pieces.progress(bytes_done, bytes_total))

        def fetched(bytes_done: int, bytes_total: int) -> None:
            nonlocal fetched_bytes
            fetched_bytes = bytes_total
            tell(bytes_done, bytes_total + device_bytes)

        def loaded(bytes_done: int, bytes_total: int) -> None:
            tell(fetched_bytes + bytes_done, fetched_bytes + bytes_total)

        tell(0, device_bytes)
        await self._weights.fetch(shard, piece, fetched)
        # Sessions may have taken what was free when the fetch began.
        self._pools.check(shard, left)
        # Before the load, so that the pools make room for the weights.
        self._pools.divide_on(engine)
        if piece.start == 0 and shard.key not in self.codecs:
            codec = await asyncio.to_thread(TextCodec.load, Path(shard.folder))
            self._check_wanted(shard)
            self.codecs[shard.key] = codec
        compare_sizes(shard, await engine.load(load_command(shard, piece), loaded))
        pieces.took(piece, told_bytes, loop_time())

    def _check_wanted(self, shard: LocalShard) -> None:
        if shard.key in self._given_up:
            raise self._given_up[shard.key]


def _measure(engine: EngineProcess, shard: LocalShard) -> None:
    # It does so once nothing else is to be loaded or run.
    if not shard.preset.is_encoder:
        engine.send(MeasureLayers(shard.number))
