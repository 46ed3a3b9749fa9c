"""A Shard that grows, shrinks or fails to grow stays exact, whatever its weights are tied to."""

import pytest

from meshnet_common.shard_range import ShardRange
from tests.worker.conftest import ModelFolders
from tests.worker.engine.splitting import SplitModel, loaded
from tests.worker.engine.test_shard import ALL, check_equals_whole

FAMILIES = pytest.mark.parametrize("name", ["llama", "llama-tied", "gpt2", "gpt2-untied"])


@FAMILIES
def test_a_shard_grows_at_both_ends(name: str, model_folders: ModelFolders) -> None:
    shard = loaded(model_folders(name), 1, 3)
    for shard_range in (ShardRange(0, 1), ShardRange(3, 4)):
        list(shard.load(shard_range))
    assert shard.loaded == ALL
    check_equals_whole(name, SplitModel([(shard, ALL)]), 20)


@FAMILIES
@pytest.mark.parametrize("kept", [ShardRange(0, 2), ShardRange(2, 4)], ids=str)
def test_a_shard_that_grew_and_shrank_is_exact(
    name: str, kept: ShardRange, model_folders: ModelFolders
) -> None:
    other = next(run for run in (ShardRange(0, 2), ShardRange(2, 4)) if run != kept)
    for first, second in ((kept, other), (other, kept)):
        shard = loaded(model_folders(name), first.start, first.end)
        list(shard.load(second))
        shard.drop(other)
        rest = loaded(model_folders(name), other.start, other.end)
        hops = sorted(((shard, kept), (rest, other)), key=lambda hop: hop[1].start)
        check_equals_whole(name, SplitModel(hops), 20)


@FAMILIES
@pytest.mark.parametrize("kept", [ShardRange(0, 2), ShardRange(2, 4)], ids=str)
def test_a_load_that_ends_half_way_leaves_the_rest_exact(
    name: str, kept: ShardRange, model_folders: ModelFolders
) -> None:
    other = next(run for run in (ShardRange(0, 2), ShardRange(2, 4)) if run != kept)
    shard = loaded(model_folders(name), kept.start, kept.end)
    steps = shard.load(other)
    next(steps)
    next(steps)
    shard.unload_unfinished()
    rest = loaded(model_folders(name), other.start, other.end)
    hops = sorted(((shard, kept), (rest, other)), key=lambda hop: hop[1].start)
    check_equals_whole(name, SplitModel(hops), 20)
