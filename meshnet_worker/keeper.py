"""Keeps the Shards as the Tracker directs: loads, drains and drops Layers on the engine."""

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from meshnet_common.presets import ModelPreset
from meshnet_common.protocol.messages import Directive, DirectiveKind
from meshnet_common.shard_range import ShardRange
from meshnet_worker.engine_process import EngineLostError, EngineProcess
from meshnet_worker.engine_supervisor import EngineSlot
from meshnet_worker.kv_budget import KvBudget
from meshnet_worker.pool_sizes import PoolSizes
from meshnet_worker.reconcile import (
    DirectiveRefusedError,
    Done,
    Drop,
    Load,
    Refuse,
    layers_of,
    next_step,
)
from meshnet_worker.sessions import SessionTable
from meshnet_worker.shard_loads import ShardLoads
from meshnet_worker.shard_weights import FetchGivenUpError, ShardWeights
from meshnet_worker.shards import Loading, LocalShard, ShardTable
from meshnet_worker.text.tokenizer import TextCodec

DRAIN_SECONDS = 60.0

FetchPreset = Callable[[str], Awaitable[ModelPreset]]

log = structlog.get_logger()


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
        self._shards = shards
        self._sessions = sessions
        self._kv = kv
        self._slot = slot
        self._weights = weights
        self._pools = PoolSizes(shards, kv)
        self._loads = ShardLoads(shards, weights, self._pools)
        self._busy = asyncio.Lock()
        self._freed = asyncio.Event()
        self._dropped: dict[tuple[str, str], tuple[int, ShardRange]] = {}
        """The newest drop that is known of a Variant: its epoch, and its Layers."""

    @property
    def codecs(self) -> dict[tuple[str, str], TextCodec]:
        """The text of each model that begins here, by the key of its Shard."""
        return self._loads.codecs

    def on_freed(self) -> None:
        """Hear that a Session has ended."""
        self._freed.set()
        if self._kv.settle():
            for command in self._pools.commands():
                self._slot.send(command, b"")

    async def obey(self, directive: Directive, fetch_preset: FetchPreset) -> None:
        """Carry a directive out.

        Raises DirectiveRefusedError, ShardLoadError, EngineLostError and FetchGivenUpError.
        """
        if directive.kind == DirectiveKind.DROP_SHARD:
            self._call_off_what_it_drops(directive)
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
            case Load() if self._is_called_off(directive):
                raise _called_off()
            case Load(shard_range=shard_range):
                shard = shard or await self._add(engine, directive, fetch_preset)
                await self._loads.load(engine, shard, shard_range)
            case Drop(shard_range=shard_range):
                assert shard is not None
                await self._drop(engine, shard, shard_range)
            case Refuse(reason=reason):
                raise DirectiveRefusedError(reason)
            case Done():
                pass

    def _call_off_what_it_drops(self, directive: Directive) -> None:
        """End a load of Layers that would be dropped as soon as it were done, or its wait."""
        key, dropped = (directive.model, directive.quantization), layers_of(directive)
        if dropped is not None:
            self._dropped[key] = directive.epoch, dropped
            self._loads.give_up(key, dropped, _called_off())

    def _is_called_off(self, directive: Directive) -> bool:
        """Whether all that a load orders is dropped by a directive that came while it waited."""
        key, wanted = (directive.model, directive.quantization), layers_of(directive)
        if key not in self._dropped or wanted is None:
            return False
        epoch, dropped = self._dropped[key]
        return epoch > directive.epoch and dropped.contains(wanted)

    async def restore(self, engine: EngineProcess) -> None:
        """Load again what was ready before the engine was lost; raises EngineLostError."""
        async with self._busy:
            await self._loads.restore(engine)

    def forget_engine(self) -> None:
        """The engine is gone: what was ready waits for its restoration, the rest is given up."""
        self._loads.lose(EngineLostError("Its weights were still being fetched."))
        for shard in self._shards:
            if shard.ready is None:
                self._loads.forget(shard)
            else:
                size = shard.variant.range_bytes(shard.ready)
                shard.loading = Loading(shard.ready, 0, size)
                shard.ready = shard.draining = None
        self._pools.divide()

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

    def _check_still_there(self, engine: EngineProcess) -> None:
        # Nothing is fetched for an engine that is gone: its restoration needs the lock.
        if not self._slot.holds(engine):
            raise EngineLostError("Its weights were not fetched yet.")

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
            self._loads.forget(shard)
        self._weights.keep_only(self._shards)
        self._pools.divide_on(engine)
        log.info("layers dropped", model=shard.key[0], layers=str(shard_range))

    def _is_used(self, shard: LocalShard, shard_range: ShardRange) -> bool:
        return any(
            (s.ticket.model, s.ticket.quantization) == shard.key
            and s.hop.shard_range.overlap(shard_range) is not None
            for s in self._sessions
        )


def _called_off() -> FetchGivenUpError:
    return FetchGivenUpError("A newer directive drops these Layers.")
