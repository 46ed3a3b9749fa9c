from meshnet_common.shard_range import ShardRange
from meshnet_tracker.planning.coming import callable_off, ready_and_coming
from meshnet_tracker.planning.snapshot import Holding, VariantKey
from tests.tracker.planning.meshes import KEY, held, worker

OTHER = VariantKey("other", "nf4")
RUN = ShardRange(2, 9)


def test_a_run_is_what_is_ready_and_what_comes_beside_it() -> None:
    view = worker("a", 9, held(2, 5), held(5, 7, Holding.LOADING), held(7, 9, Holding.ORDERED))
    assert ready_and_coming(view, KEY, RUN) == (ShardRange(2, 5), ShardRange(5, 9))
    assert ready_and_coming(worker("a", 9, held(2, 9)), KEY, RUN) == (RUN, None)
    assert ready_and_coming(worker("a", 9, held(2, 9, Holding.LOADING)), KEY, RUN) == (None, RUN)


def test_what_others_have_ready_may_be_called_off_and_what_they_have_not_may_not() -> None:
    view = worker("a", 9, held(0, 3, Holding.LOADING), held(0, 2, Holding.ORDERED, OTHER))
    ready = {KEY: [1, 1, 0], OTHER: [1, 1]}
    assert [shard.variant for shard in callable_off(view, ready, ())] == [OTHER]
    assert len(list(callable_off(view, ready, {KEY}))) == 2


def test_what_is_ready_or_of_a_variant_that_was_not_named_is_not_called_off() -> None:
    view = worker("a", 9, held(0, 3), held(0, 2, Holding.ORDERED, OTHER))
    assert list(callable_off(view, {KEY: [1, 1, 1]}, ())) == []
