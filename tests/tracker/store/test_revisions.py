from dataclasses import replace

import pytest

from meshnet_common.shard_range import ShardRange
from meshnet_tracker.planning.snapshot import HeldShard, Holding
from meshnet_tracker.store.revisions import UNKNOWN, Revisions
from tests.tracker.builders import MODEL, preset

TINY = preset(layers=6).preset
DIGEST = TINY.variants[0].digest
NOW = Revisions.of([TINY])


def held(end: int, digest: str, holding: Holding = Holding.READY) -> HeldShard:
    return HeldShard(MODEL, ShardRange(0, end), holding, digest)


@pytest.mark.parametrize("digest", ["", DIGEST])
def test_a_shard_of_the_served_weights_has_no_revision(digest: str) -> None:
    shard = held(6, digest)
    assert NOW.marked((shard,))[0] is shard


@pytest.mark.parametrize("holding", Holding)
@pytest.mark.parametrize(
    ("end", "digest", "revision"),
    [(6, "other", "other"), (7, "", UNKNOWN), (7, DIGEST, DIGEST), (100_000, "other", "other")],
)
def test_other_weights_or_more_layers_are_another_revision(
    end: int, digest: str, revision: str, holding: Holding
) -> None:
    (marked,) = NOW.marked((held(end, digest, holding),))
    assert marked == replace(held(end, digest, holding), variant=replace(MODEL, revision=revision))


def test_what_is_marked_is_told_anew_when_presets_change() -> None:
    shards = (held(6, "other"), held(6, DIGEST))
    again = Revisions.of([]).marked(NOW.marked(shards))
    assert again == shards
