"""Keeps the Shards as the Tracker directs: loads, drains and drops Layers on the engine."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import structlog

from meshnet_common.edge.clock import loop_time
from meshnet_common.errors import MeshnetError
from meshnet_common.presets import ModelPreset
from meshnet_common.protocol.messages import Directive
from meshnet_common.shard_range import ShardRange
from meshnet_worker.engine_port import MeasureLayers, SizePool
from meshnet_worker.engine_process import EngineLostError, EngineProcess
from meshnet_worker.engine_supervisor import EngineSlot
from meshnet_worker.kv_budget import KvBudget, PoolShape
from meshnet_worker.layer_loads import compare_sizes, load_command
from meshnet_worker.pieces import Pieces
from meshnet_worker.reconcile import Done, Drop, Load, Refuse, next_step
from meshnet_worker.sessions import SessionTable
from meshnet_worker.shard_weights import FetchGivenUpError, ShardWeights
from meshnet_worker.shards import Loading, LocalShard, ShardTable
from meshnet_worker.text.tokenizer import TextCodec

DRAIN_SECONDS = 60.0

FetchPreset = Callable[[str], Awaitable[ModelPreset]]

log = structlog.get_logger()


class DirectiveRefusedError(MeshnetError):
    """The Worker cannot obey a Rebalance Directive."""


class ShardKeeper:
    """Carries out Rebalance Directives, one at a time per Worker."""

    def __init__(
        self,
        shards: ShardTable,
        sessions: SessionTable,
        kv: KvBudget,
        slot: EngineSlot,
        weights: ShardWeights,
    ) -> None:
        self.codecs: dict[tuple[str, str], TextCodec] = {}
        self._shards = shards
        self._sessions = sessions
        self._kv = kv
        self._slot = slot
        self._weights = weights
        self._busy = asyncio.Lock()
        self._freed = asyncio.Event()
        self._given_up: dict[tuple[str, str], MeshnetError] = {}
        """Why the load of a Shard that is under way goes on no more."""

    def on_freed(self) -> None:
        """Hear that a Session has ended."""
        self._freed.set()
        if self._kv.settle():
            for command in self._pool_sizes():
                self._slot.send(command, b"")

    async def obey(self, directive: Directive, fetch_preset: FetchPreset) -> None:
        """Carry a directive out; raises DirectiveRefusedError, ShardLoadError, EngineLostError."""
        self._give_up_what_it_drops(directive)
        while True:
            # The engine first: its restoration needs the lock that is taken next.
            engine = await self._slot.get()
            async with self._busy:
                # While this waited for the lock, the engine may have gone and another come.
                if self._slot.holds(engine):
                    await self._carry_out(engine, directive, fetch_preset)
                    return

    async def _carry_out(
        self, engine: EngineProcess, directive: Directive, fetch_preset: FetchPreset
    ) -> None:
        shard = self._shards.find(directive.model, directive.quantization)
        match next_step(shard, directive):
            case Load(shard_range=shard_range):
                shard = shard or await self._add(engine, directive, fetch_preset)
                await self._load(engine, shard, shard_range)
            case Drop(shard_range=shard_range):
                assert shard is not None
                await self._drop(engine, shard, shard_range)
            case Refuse(reason=reason):
                raise DirectiveRefusedError(reason)
            case Done():
                pass

    def _give_up_what_it_drops(self, directive: Directive) -> None:
        match next_step(None, directive):
            # A load of the same Layers, which would be dropped as soon as it were done.
            case Done() if self._is_under_way(directive):
                newer = FetchGivenUpError("A newer directive drops these Layers.")
                self._given_up[directive.model, directive.quantization] = newer
                self._weights.give_up(newer)
            case _:
                pass

    def _is_under_way(self, directive: Directive) -> bool:
        dropped = ShardRange(directive.start_layer, directive.end_layer)
        shard = self._shards.find(directive.model, directive.quantization)
        if shard is not None and shard.loading is not None:
            return shard.loading.shard_range.overlap(dropped) is not None
        return self._weights.is_fetching((directive.model, directive.quantization), dropped)

    async def restore(self, engine: EngineProcess) -> None:
        """Load again what was ready before the engine was lost; raises EngineLostError."""
        async with self._busy:
            for shard in self._shards:
                if shard.loading is not None:
                    await self._restore(engine, shard, shard.loading.shard_range)

    async def _restore(
        self, engine: EngineProcess, shard: LocalShard, shard_range: ShardRange
    ) -> None:
        try:
            await self._load(engine, shard, shard_range)
        except EngineLostError:
            raise
        except MeshnetError as error:
            # A Shard that cannot be had again must not take the Worker with it.
            log.warning("shard given up", model=shard.key[0], reason=str(error))
        except Exception:
            # A fault of ours must not do that either.
            log.exception("shard given up", model=shard.key[0])

    def forget_engine(self) -> None:
        """The engine is gone: what was ready waits for its restoration, the rest is given up."""
        lost = EngineLostError("Its weights were still being fetched.")
        for shard in self._shards:
            self._given_up[shard.key] = lost
            if shard.ready is None:
                self._forget(shard)
            else:
                size = shard.variant.range_bytes(shard.ready)
                shard.loading = Loading(shard.ready, 0, size)
                shard.ready = shard.draining = None
        # Whoever fetches holds the lock that the restoration needs.
        self._weights.give_up(lost)
        self._divide()

    async def _add(
        self, engine: EngineProcess, directive: Directive, fetch_preset: FetchPreset
    ) -> LocalShard:
        preset = await fetch_preset(directive.model)
        variant = preset.variant(directive.quantization)
        if variant is None:
            raise DirectiveRefusedError(f"{preset.name} has no such Variant.")
        self._check_still_there(engine)
        folder = await self._weights.open(preset, directive.quantization)
        # No wait between here and the fetch, which a loss then gives up.
        self._check_still_there(engine)
        return self._shards.add(preset, variant, folder)

    def _forget(self, shard: LocalShard) -> None:
        self._shards.remove(shard)
        # What comes under this name later may have another text.
        self.codecs.pop(shard.key, None)

    def _check_still_there(self, engine: EngineProcess) -> None:
        # Nothing is fetched for an engine that is gone: its restoration needs the lock.
        if not self._slot.holds(engine):
            raise EngineLostError("Its weights were not fetched yet.")

    async def _load(
        self, engine: EngineProcess, shard: LocalShard, shard_range: ShardRange
    ) -> None:
        try:
            self._check_memory(shard, shard_range)
            await self._put_on_device(engine, shard, shard_range)
        except EngineLostError:
            raise
        except Exception:
            shard.loading = None
            raise
        finally:
            if shard.held is None:
                self._forget(shard)
            self._weights.keep_only(self._shards)
            self._size_pools(engine)
        log.info("shard ready", model=shard.key[0], variant=shard.key[1], layers=str(shard.ready))

    async def _put_on_device(
        self, engine: EngineProcess, shard: LocalShard, shard_range: ShardRange
    ) -> None:
        pieces = Pieces(shard.variant, shard_range, self._weights.bytes_per_second)
        begins = shard.ready is None
        self._given_up.pop(shard.key, None)
        while pieces.left is not None:
            piece = pieces.next(shard.ready, loop_time())
            await self._put_piece(engine, shard, piece, pieces)
            shard.ready = shard.ready.union(piece) if shard.ready else piece
            shard.loading = Loading(pieces.left, *pieces.progress(0, 0)) if pieces.left else None
            # What is ready may serve, but the rest stays spoken for.
            self._size_pools(engine)
        if begins and not shard.preset.is_encoder:
            engine.send(MeasureLayers(shard.number))

    async def _put_piece(
        self, engine: EngineProcess, shard: LocalShard, piece: ShardRange, pieces: Pieces
    ) -> None:
        if shard.key in self._given_up:
            raise self._given_up[shard.key]
        assert pieces.left is not None
        left = pieces.left
        fetched_bytes, device_bytes = 0, shard.variant.range_bytes(piece)
        shard.loading = Loading(left, *pieces.progress(0, device_bytes))

        def fetched(bytes_done: int, bytes_total: int) -> None:
            nonlocal fetched_bytes
            fetched_bytes = bytes_total
            shard.loading = Loading(left, *pieces.progress(bytes_done, bytes_total + device_bytes))

        def loaded(bytes_done: int, bytes_total: int) -> None:
            done, total = fetched_bytes + bytes_done, fetched_bytes + bytes_total
            shard.loading = Loading(left, *pieces.progress(done, total))

        await self._weights.fetch(shard, piece, fetched)
        # Sessions may have taken what was free when the fetch began.
        self._check_memory(shard, left)
        # Before the load, so that the pools make room for the weights.
        self._size_pools(engine)
        if piece.start == 0 and shard.key not in self.codecs:
            codec = await asyncio.to_thread(TextCodec.load, Path(shard.folder))
            self.codecs[shard.key] = codec
        compare_sizes(shard, await engine.load(load_command(shard, piece), loaded))
        pieces.took(piece, fetched_bytes + device_bytes, loop_time())

    async def _drop(
        self, engine: EngineProcess, shard: LocalShard, shard_range: ShardRange
    ) -> None:
        shard.draining = shard_range
        try:
            async with asyncio.timeout(DRAIN_SECONDS):
                while self._is_used(shard, shard_range):
                    self._freed.clear()
                    await self._freed.wait()
        except TimeoutError:
            log.warning("drain cut short", model=shard.key[0], layers=str(shard_range))
        await engine.drop(shard.number, shard_range)
        left = shard.ready.minus(shard_range) if shard.ready else ()
        shard.ready, shard.draining = (left[0] if left else None), None
        if shard.held is None:
            self._forget(shard)
        self._weights.keep_only(self._shards)
        self._size_pools(engine)
        log.info("layers dropped", model=shard.key[0], layers=str(shard_range))

    def _is_used(self, shard: LocalShard, shard_range: ShardRange) -> bool:
        return any(
            (s.ticket.model, s.ticket.quantization) == shard.key
            and s.hop.shard_range.overlap(shard_range) is not None
            for s in self._sessions
        )

    def _size_pools(self, engine: EngineProcess) -> None:
        """Divide anew what the weights leave of the Budget, and tell the engine."""
        self._divide()
        for command in self._pool_sizes():
            engine.send(command)

    def _divide(self) -> None:
        shapes = (
            _shape(shard, shard.held)
            for shard in self._shards
            if shard.held and not shard.preset.is_encoder
        )
        self._kv.resize(self._shards.weight_bytes, shapes)

    def _pool_sizes(self) -> Iterator[SizePool]:
        for shard in self._shards:
            # What still loads has no pool that could be in the way, and an encoder none at all.
            if shard.ready is not None and not shard.preset.is_encoder:
                yield SizePool(shard.number, self._kv.pools[shard.number].blocks)

    def _check_memory(self, shard: LocalShard, shard_range: ShardRange) -> None:
        after = shard.held.union(shard_range) if shard.held else shard_range
        wanted = shard.variant.range_bytes(after)
        held = ((one, after if one is shard else one.held) for one in self._shards)
        shapes = [
            _shape(one, layers) for one, layers in held if layers and not one.preset.is_encoder
        ]
        others = self._shards.weight_bytes - shard.weight_bytes + self._kv.held_bytes(shapes)
        if wanted + others > self._kv.budget_bytes:
            facts = f"{shard_range} needs {wanted} bytes beside {others}"
            raise DirectiveRefusedError(f"{facts}, and {self._kv.budget_bytes} are lent.")


def _shape(shard: LocalShard, layers: ShardRange) -> PoolShape:
    return PoolShape(shard.number, layers, shard.variant.kv_bytes_per_token_per_layer)
