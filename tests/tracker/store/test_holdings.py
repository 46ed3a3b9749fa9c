from collections.abc import Iterable
from itertools import pairwise

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from meshnet_common.protocol.messages import Directive, DirectiveKind, ShardReport, ShardState
from meshnet_common.shard_range import ShardRange
from meshnet_tracker.planning.snapshot import HeldShard, Holding
from meshnet_tracker.store.holdings import after_drop, after_load, held_shards, tidy_reports
from tests.tracker.builders import DIGEST, MODEL, shard


def order(kind: DirectiveKind, start: int, end: int, epoch: int = 1) -> Directive:
    return Directive(
        id=f"d{epoch}",
        epoch=epoch,
        kind=kind,
        model=MODEL.model,
        start_layer=start,
        end_layer=end,
        quantization=MODEL.quantization,
        reason="gap",
        deadline=0.0,
    )


def held(*runs: tuple[int, int, Holding]) -> tuple[HeldShard, ...]:
    return tuple(HeldShard(MODEL, ShardRange(start, end), what) for start, end, what in runs)


ranges = st.tuples(st.integers(0, 9), st.integers(1, 5)).map(lambda r: (r[0], r[0] + r[1]))
reports = st.lists(
    st.builds(lambda r, s: shard(r[0], r[1], s), ranges, st.sampled_from(ShardState))
)
orders = st.lists(st.builds(lambda k, r: order(k, *r), st.sampled_from(DirectiveKind), ranges))


def test_an_unreported_load_is_ordered() -> None:
    found = held_shards([shard(0, 4)], [order(DirectiveKind.LOAD_SHARD, 0, 8)])
    assert found == held((0, 4, Holding.READY), (4, 8, Holding.ORDERED))


def test_an_open_drop_does_not_cover_from_the_moment_it_is_issued() -> None:
    found = held_shards([shard(0, 20)], [order(DirectiveKind.DROP_SHARD, 12, 20)])
    assert found == held((0, 12, Holding.READY), (12, 20, Holding.DRAINING))


def test_a_worker_that_says_draining_is_believed_before_one_that_says_ready() -> None:
    found = held_shards([shard(0, 6), shard(4, 6, ShardState.DRAINING)], [])
    assert found == held((0, 4, Holding.READY), (4, 6, Holding.DRAINING))


def test_a_wider_shard_that_loads_beside_the_ready_one_counts_once() -> None:
    found = held_shards([shard(0, 8, ShardState.LOADING), shard(0, 4)], [])
    assert found == held((0, 4, Holding.READY), (4, 8, Holding.LOADING))


@given(reports, orders)
def test_a_workers_runs_of_one_variant_never_overlap(
    said: list[ShardReport], told: list[Directive]
) -> None:
    runs = [run.shard_range for run in held_shards(said, told)]
    assert all(one.end <= other.start for one, other in pairwise(runs))


@given(reports)
def test_ready_layers_count_once_and_none_is_lost_that_does_not_drain(
    said: list[ShardReport],
) -> None:
    def layers(found: Iterable[ShardReport], state: ShardState) -> list[int]:
        runs = (report.shard_range for report in found if report.state is state)
        return [layer for run in runs for layer in run.layers]

    tidied = layers(tidy_reports(said), ShardState.READY)
    draining = layers(said, ShardState.DRAINING) if len(said) > 1 else []
    assert sorted(tidied) == sorted({*layers(said, ShardState.READY)} - {*draining})


def test_the_digest_of_a_shard_stays_with_its_pieces() -> None:
    told = [order(DirectiveKind.DROP_SHARD, 2, 4), order(DirectiveKind.LOAD_SHARD, 0, 8, 2)]
    found = held_shards([shard(0, 4, digest=DIGEST)], told)
    assert [(run.shard_range.start, run.digest) for run in found] == [
        (0, DIGEST),
        (2, DIGEST),
        (4, ""),
    ]


def test_a_finished_load_joins_what_was_there_before_of_its_weights() -> None:
    said = after_load(
        [shard(0, 4, digest=DIGEST)], order(DirectiveKind.LOAD_SHARD, 0, 8), is_tail=True
    )
    assert said == (msgspec.structs.replace(shard(0, 8, digest=DIGEST), is_tail=True),)


def test_a_finished_load_is_ready_at_once() -> None:
    said = after_load(
        [shard(0, 4, ShardState.LOADING)], order(DirectiveKind.LOAD_SHARD, 0, 4), True
    )
    assert [(r.shard_range, r.state, r.is_tail) for r in said] == [
        (ShardRange(0, 4), ShardState.READY, True)
    ]


def test_a_finished_drop_is_gone_at_once() -> None:
    said = after_drop([shard(0, 20)], order(DirectiveKind.DROP_SHARD, 12, 20))
    assert said == (shard(0, 12),)
