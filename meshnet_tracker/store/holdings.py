"""What a Worker holds, worked out of its reports and its open Rebalance Directives; pure.

What the two make together:

    reported by the Worker   [0 ........ READY ........ 20)
    open DROP_SHARD                            [12 ... 20)
    open LOAD_SHARD                                       [20 ... 28)
    held                     [0 READY 12) [12 DRAINING 20) [20 ORDERED 28)
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import msgspec

from meshnet_common.protocol.messages import Directive, DirectiveKind, ShardReport, ShardState
from meshnet_common.shard_range import ShardRange
from meshnet_tracker.planning.snapshot import HeldShard, Holding, VariantKey

_HOLDINGS = {
    ShardState.DRAINING: Holding.DRAINING,
    ShardState.READY: Holding.READY,
    ShardState.LOADING: Holding.LOADING,
}
"""In order of belief: where two reports overlap, the earlier state counts."""


def tidy_reports(reports: Sequence[ShardReport]) -> tuple[ShardReport, ...]:
    """Join overlapping READY reports of one Variant, so that no Layer counts twice.

    What drains besides is not READY.
    """
    if len(reports) < 2:
        return tuple(reports)
    ready = sorted(
        (
            left
            for report in reports
            if report.state is ShardState.READY
            for left in _without_draining(report, reports)
        ),
        key=lambda report: (report.model, report.quantization, report.start_layer),
    )
    joined: list[ShardReport] = []
    for report in ready:
        last = joined[-1] if joined else None
        if last and same_variant(last, report) and last.end_layer > report.start_layer:
            end = max(last.end_layer, report.end_layer)
            is_tail = last.is_tail or report.is_tail
            digest = last.digest or report.digest
            joined[-1] = msgspec.structs.replace(
                last, end_layer=end, is_tail=is_tail, digest=digest
            )
        else:
            joined.append(report)
    others = (report for report in reports if report.state is not ShardState.READY)
    return (*joined, *others)


def places(reports: Iterable[ShardReport]) -> set[tuple[object, ...]]:
    """Tell which Layers of which weights are in which state."""
    return {
        (report.model, report.quantization, report.digest, report.shard_range, report.state)
        for report in reports
    }


def held_shards(
    reports: Sequence[ShardReport], directives: Sequence[Directive]
) -> tuple[HeldShard, ...]:
    """Combine one Worker's reports with its open directives, given by rising epoch."""
    held = _reported(reports)
    for directive in directives:
        variant = VariantKey(directive.model, directive.quantization)
        is_load = directive.kind == DirectiveKind.LOAD_SHARD
        order = with_load if is_load else with_drop
        held = order(held, variant, directive_range(directive))
    return tuple(sorted(held, key=lambda shard: (shard.variant, shard.shard_range)))


def with_load(
    held: Sequence[HeldShard], variant: VariantKey, ordered: ShardRange
) -> list[HeldShard]:
    """Add what a LOAD_SHARD orders and the Worker does not hold in any form."""
    return [*held, *uncovered(held, HeldShard(variant, ordered, Holding.ORDERED))]


def with_drop(
    held: Sequence[HeldShard], variant: VariantKey, dropped: ShardRange
) -> list[HeldShard]:
    """Let everything that a DROP_SHARD names drain."""
    return [piece for shard in held for piece in _drained(shard, variant, dropped)]


def uncovered(held: Iterable[HeldShard], shard: HeldShard) -> list[HeldShard]:
    """Return the parts of a Shard that none of the held ones of its Variant has."""
    pieces: tuple[ShardRange, ...] = (shard.shard_range,)
    for other in held:
        if other.variant == shard.variant:
            pieces = tuple(left for piece in pieces for left in piece.minus(other.shard_range))
    return [replace(shard, shard_range=piece) for piece in pieces]


def after_load(
    reports: Sequence[ShardReport], directive: Directive, is_tail: bool
) -> tuple[ShardReport, ...]:
    """Reports as they stand once a LOAD_SHARD is done, before the next heartbeat tells."""
    loaded = ShardReport(
        model=directive.model,
        quantization=directive.quantization,
        start_layer=directive.start_layer,
        end_layer=directive.end_layer,
        state=ShardState.READY,
        is_tail=is_tail,
    )
    return tidy_reports((*after_drop(reports, directive, (ShardState.LOADING,)), loaded))


def after_drop(
    reports: Sequence[ShardReport],
    directive: Directive,
    states: Iterable[ShardState] = tuple(ShardState),
) -> tuple[ShardReport, ...]:
    """Reports without the directive's Layers, as far as they are in one of `states`."""
    wanted = tuple(states)
    return tuple(
        piece
        for report in reports
        for piece in (
            _cut(report, directive_range(directive))
            if same_variant(report, directive) and report.state in wanted
            else (report,)
        )
    )


def same_variant(one: ShardReport | Directive, other: ShardReport | Directive) -> bool:
    """Tell whether two messages speak of one Variant."""
    return (one.model, one.quantization) == (other.model, other.quantization)


def directive_range(directive: Directive) -> ShardRange:
    """Return the Layers that a directive names."""
    return ShardRange(directive.start_layer, directive.end_layer)


def _reported(reports: Sequence[ShardReport]) -> list[HeldShard]:
    held: list[HeldShard] = []
    for state, holding in _HOLDINGS.items():
        for report in reports:
            if report.state is state:
                variant = VariantKey(report.model, report.quantization)
                shard = HeldShard(variant, report.shard_range, holding, report.digest)
                held += uncovered(held, shard)
    return held


def _drained(shard: HeldShard, variant: VariantKey, dropped: ShardRange) -> list[HeldShard]:
    draining = shard.shard_range.overlap(dropped) if shard.variant == variant else None
    if draining is None:
        return [shard]
    kept = [replace(shard, shard_range=piece) for piece in shard.shard_range.minus(dropped)]
    return [*kept, replace(shard, shard_range=draining, holding=Holding.DRAINING)]


def _without_draining(
    report: ShardReport, reports: Iterable[ShardReport]
) -> tuple[ShardReport, ...]:
    pieces: tuple[ShardReport, ...] = (report,)
    for other in reports:
        if other.state is ShardState.DRAINING and same_variant(other, report):
            pieces = tuple(left for piece in pieces for left in _cut(piece, other.shard_range))
    return pieces


def _cut(report: ShardReport, dropped: ShardRange) -> tuple[ShardReport, ...]:
    return tuple(
        msgspec.structs.replace(
            report,
            start_layer=piece.start,
            end_layer=piece.end,
            is_tail=report.is_tail and piece.end == report.end_layer,
        )
        for piece in report.shard_range.minus(dropped)
    )
