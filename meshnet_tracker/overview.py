"""What an Operator sees of placement, names and orders: the same for commands and admin API."""

from collections.abc import Iterable

import msgspec

from meshnet_common.protocol.messages import CoverageRow
from meshnet_common.shard_range import ShardRange
from meshnet_tracker.models import NameBook, ServedModel, served_models
from meshnet_tracker.planning.coverage import CoverageMap, count_layers, held_ranges
from meshnet_tracker.planning.snapshot import Holding, MeshSnapshot, Pin, VariantKey
from meshnet_tracker.records import AliasRecord, DirectiveRecord

_READY = frozenset({Holding.READY})


class LayerRun(msgspec.Struct, frozen=True):
    """Some Layers, the end excluded."""

    start_layer: int
    end_layer: int


class VariantCoverage(msgspec.Struct, frozen=True, kw_only=True):
    """How well one Variant is served; `names` are the public names that mean it."""

    model: str
    quantization: str
    own_name: str
    names: tuple[str, ...]
    is_canary: bool
    layer_count: int
    is_servable: bool
    thinnest_replicas: int
    missing_layers: int
    gaps: tuple[LayerRun, ...]
    coverage: tuple[CoverageRow, ...]


class PinEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A Worker that serves exactly these Layers."""

    worker_id: str
    model: str
    quantization: str
    start_layer: int
    end_layer: int


class AliasEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A public name, what answers under it, and what a rollback would go back to."""

    name: str
    target: str
    prior: str | None
    changed_at: float


class DirectiveEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A Rebalance Directive with its story; `detail` is what was said about its end."""

    id: str
    epoch: int
    worker_id: str
    kind: str
    model: str
    quantization: str
    start_layer: int
    end_layer: int
    reason: str
    why: str
    state: str
    detail: str
    age_seconds: float
    bytes_done: int
    bytes_total: int


def coverage_maps(snapshot: MeshSnapshot) -> list[tuple[VariantKey, CoverageMap]]:
    """Count the ready replicas of every Variant's Layers, looking at each Worker once."""
    layer_counts = {key: variant.layer_count for key, variant in snapshot.variants()}
    ranges: dict[VariantKey, list[ShardRange]] = {key: [] for key in layer_counts}
    for worker in snapshot.workers:
        for key in {shard.variant for shard in worker.held} & ranges.keys():
            ranges[key] += held_ranges(worker, key, _READY)
    return [
        (key, CoverageMap(tuple(count_layers(ranges[key], count))))
        for key, count in layer_counts.items()
    ]


def describe_coverage(snapshot: MeshSnapshot, names: NameBook) -> tuple[VariantCoverage, ...]:
    """Describe how well every Variant is served, in the order of the presets."""
    maps = dict(coverage_maps(snapshot))
    return tuple(
        _variant_coverage(model, maps[model.key], names)
        for model in served_models(snapshot.presets)
    )


def describe_pins(pins: Iterable[Pin]) -> tuple[PinEntry, ...]:
    """Tell all pins in plain values."""
    return tuple(
        PinEntry(
            worker_id=pin.worker_id,
            model=pin.variant.model,
            quantization=pin.variant.quantization,
            start_layer=pin.shard_range.start,
            end_layer=pin.shard_range.end,
        )
        for pin in pins
    )


def describe_aliases(aliases: Iterable[AliasRecord]) -> tuple[AliasEntry, ...]:
    """Tell all Aliases in plain values."""
    return tuple(describe_alias(alias) for alias in aliases)


def describe_alias(alias: AliasRecord) -> AliasEntry:
    """Tell one Alias in plain values."""
    return AliasEntry(
        name=alias.name, target=alias.target, prior=alias.prior, changed_at=alias.changed_at
    )


def describe_directives(
    records: Iterable[DirectiveRecord], now: float
) -> tuple[DirectiveEntry, ...]:
    """Tell Rebalance Directives in plain values, with their age."""
    return tuple(
        DirectiveEntry(
            id=record.directive.id,
            epoch=record.directive.epoch,
            worker_id=record.worker_id,
            kind=record.directive.kind,
            model=record.directive.model,
            quantization=record.directive.quantization,
            start_layer=record.directive.start_layer,
            end_layer=record.directive.end_layer,
            reason=record.directive.reason,
            why=record.why,
            state=record.state,
            detail=record.detail,
            age_seconds=round(max(0.0, now - record.issued_at), 3),
            bytes_done=record.bytes_done,
            bytes_total=record.bytes_total,
        )
        for record in records
    )


def _variant_coverage(
    model: ServedModel, coverage: CoverageMap, names: NameBook
) -> VariantCoverage:
    return VariantCoverage(
        model=model.key.model,
        quantization=model.key.quantization,
        own_name=model.name,
        names=names.listed_as(model),
        is_canary=names.is_canary(model),
        layer_count=model.layer_count,
        is_servable=coverage.servable,
        thinnest_replicas=coverage.replicas,
        missing_layers=len(coverage.missing_layers),
        gaps=tuple(LayerRun(gap.start, gap.end) for gap in coverage.gaps()),
        coverage=coverage.rows(),
    )
