"""The Shards of this Worker: what is ready, what is loading, what is being drained; pure.

A Worker holds one run of Layers per Variant. A LOAD_SHARD that touches the run extends it, a
DROP_SHARD trims one end; new Sessions use only Layers that are ready and not draining. A Worker
that leaves drains all of them.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec

from meshnet_common.errors import MeshnetError
from meshnet_common.presets import DTYPE_BYTES, ModelPreset, Variant
from meshnet_common.protocol.messages import ShardReport, ShardState
from meshnet_common.protocol.tickets import RouteTicket
from meshnet_common.shard_range import ShardRange
from meshnet_worker.fingerprint import fingerprint


class NotServingError(MeshnetError):
    """The Worker does not serve these Layers now."""


class DrainingError(NotServingError):
    """The Worker is leaving and takes no new Session."""


@dataclass(frozen=True, slots=True)
class Loading:
    """Layers on their way to the device."""

    shard_range: ShardRange
    bytes_done: int
    bytes_total: int


@dataclass(slots=True)
class LocalShard:
    """One Variant's Layers on this Worker; `number` names it to the engine."""

    number: int
    preset: ModelPreset
    variant: Variant
    folder: str
    ready: ShardRange | None = None
    loading: Loading | None = None
    draining: ShardRange | None = None
    fingerprint: str = field(init=False)
    """What the same seed gives the same answers for; the same on every Worker."""

    def __post_init__(self) -> None:
        self.fingerprint = fingerprint(self.preset, self.variant)

    @property
    def key(self) -> tuple[str, str]:
        return self.preset.name, self.variant.quantization

    @property
    def row_bytes(self) -> int:
        return self.preset.hidden_size * DTYPE_BYTES[self.variant.wire_dtype]

    @property
    def held(self) -> ShardRange | None:
        """All Layers whose weights are on the device or on their way to it."""
        ranges = [r for r in (self.ready, self.loading and self.loading.shard_range) if r]
        if not ranges:
            return None
        return ranges[0] if len(ranges) == 1 else ranges[0].union(ranges[1])

    @property
    def weight_bytes(self) -> int:
        return self.variant.range_bytes(self.held) if self.held else 0

    def serves(self, shard_range: ShardRange) -> bool:
        """Whether new Sessions may use these Layers."""
        if self.ready is None or not self.ready.contains(shard_range):
            return False
        return self.draining is None or self.draining.overlap(shard_range) is None

    def reports(self) -> Iterator[ShardReport]:
        """What the Tracker is told: each run of Layers once, in one state."""
        if self.ready is not None:
            open_runs = self.ready.minus(self.draining) if self.draining else (self.ready,)
            for run in open_runs:
                yield self._report(run, ShardState.READY)
        if self.draining is not None:
            yield self._report(self.draining, ShardState.DRAINING)
        if self.loading is not None:
            yield self._report(self.loading.shard_range, ShardState.LOADING, self.loading)

    def _report(
        self, run: ShardRange, state: ShardState, loading: Loading | None = None
    ) -> ShardReport:
        size = self.variant.range_bytes(run)
        return ShardReport(
            model=self.preset.name,
            quantization=self.variant.quantization,
            start_layer=run.start,
            end_layer=run.end,
            state=state,
            is_tail=run.end == self.variant.layer_count,
            bytes_done=loading.bytes_done if loading else size,
            bytes_total=loading.bytes_total if loading else size,
            digest=self.variant.digest,
        )


class ShardTable:
    """The Shards by (model, quantization)."""

    def __init__(self) -> None:
        self.leaving = False
        """Whether this Worker only finishes what it runs."""
        self._shards: dict[tuple[str, str], LocalShard] = {}
        self._numbers = 0

    def __iter__(self) -> Iterator[LocalShard]:
        return iter(tuple(self._shards.values()))

    @property
    def weight_bytes(self) -> int:
        return sum(shard.weight_bytes for shard in self)

    def find(self, model: str, quantization: str) -> LocalShard | None:
        return self._shards.get((model, quantization))

    def add(self, preset: ModelPreset, variant: Variant, folder: str) -> LocalShard:
        shard = LocalShard(self._numbers, preset, variant, folder)
        self._numbers += 1
        self._shards[shard.key] = shard
        return shard

    def remove(self, shard: LocalShard) -> None:
        self._shards.pop(shard.key, None)

    def named(self, public_name: str) -> LocalShard | None:
        """Find the Shard of a public model name."""
        return next((s for s in self if public_name == s.preset.public_name(s.key[1])), None)

    def serving(self, ticket: RouteTicket, shard_range: ShardRange) -> LocalShard:
        """The Shard that runs a ticket's Layers; raises NotServingError or DrainingError."""
        shard = self._found(ticket, shard_range)
        if shard.preset.is_encoder:
            raise NotServingError(f"{ticket.model} is an encoder, which runs no Sessions.")
        return shard

    def encoding(self, ticket: RouteTicket) -> LocalShard:
        """What a ticket's texts are encoded with; raises NotServingError or DrainingError."""
        return self._found(ticket, ticket.hops[0].shard_range)

    def _found(self, ticket: RouteTicket, shard_range: ShardRange) -> LocalShard:
        if self.leaving:
            raise DrainingError
        shard = self.find(ticket.model, ticket.quantization)
        if shard is None or not shard.serves(shard_range):
            raise NotServingError(f"{ticket.model} {ticket.quantization} {shard_range} is not.")
        if shard.variant.digest != ticket.variant_digest:
            raise NotServingError(f"It holds {shard.variant.digest}, not {ticket.variant_digest}.")
        return shard

    def reports(self) -> tuple[ShardReport, ...]:
        reports = (report for shard in self for report in shard.reports())
        return tuple(map(_as_drained, reports) if self.leaving else reports)


def _as_drained(report: ShardReport) -> ShardReport:
    if report.state is not ShardState.READY:
        return report
    return msgspec.structs.replace(report, state=ShardState.DRAINING)
