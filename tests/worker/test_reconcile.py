import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshnet_common.protocol.messages import DirectiveKind
from meshnet_common.shard_range import ShardRange
from meshnet_worker.reconcile import Done, Drop, Load, Refuse, Step, next_step
from tests.worker.builders import directive, local_shard

LAYERS = 6
BOUNDS = st.tuples(st.integers(0, LAYERS), st.integers(0, LAYERS))


def load(ready: tuple[int, int] | None, start: int, end: int) -> Step:
    return next_step(local_shard(ready), directive(start, end))


def drop(ready: tuple[int, int] | None, start: int, end: int) -> Step:
    return next_step(local_shard(ready), directive(start, end, DirectiveKind.DROP_SHARD))


def loads(start: int, end: int) -> Load:
    return Load(ShardRange(start, end))


def drops(start: int, end: int) -> Drop:
    return Drop(ShardRange(start, end))


def test_a_first_shard_is_loaded_as_told() -> None:
    assert next_step(None, directive(1, 3)) == loads(1, 3)
    assert load(None, 1, 3) == loads(1, 3)


def test_only_what_is_missing_is_loaded() -> None:
    assert load((0, 2), 0, 4) == loads(2, 4)
    assert load((2, 4), 1, 3) == loads(1, 2)
    assert load((0, 2), 2, 4) == loads(2, 4)


def test_what_is_loaded_is_not_loaded_again() -> None:
    assert load((0, 4), 1, 3) == Done()


def test_a_load_that_would_leave_a_gap_is_refused() -> None:
    assert isinstance(load((0, 1), 2, 4), Refuse)


def test_a_load_at_both_ends_at_once_is_refused() -> None:
    assert isinstance(load((1, 2), 0, 4), Refuse)


def test_a_drop_trims_an_end_or_takes_all() -> None:
    assert drop((0, 4), 2, 4) == drops(2, 4)
    assert drop((0, 4), 0, 1) == drops(0, 1)
    assert drop((1, 3), 0, 4) == drops(1, 3)


def test_a_drop_of_what_is_not_there_is_done() -> None:
    assert drop((0, 2), 2, 4) == Done()
    assert drop(None, 0, 4) == Done()
    assert next_step(None, directive(0, 4, DirectiveKind.DROP_SHARD)) == Done()


def test_a_drop_that_would_split_a_shard_is_refused() -> None:
    assert isinstance(drop((0, 4), 1, 3), Refuse)


@pytest.mark.parametrize(("start", "end"), [(2, 2), (3, 1), (-1, 2)])
def test_layers_that_are_no_range_are_refused(start: int, end: int) -> None:
    assert isinstance(load((0, 4), start, end), Refuse)


def test_an_unknown_kind_is_refused_and_named() -> None:
    step = next_step(local_shard(), directive(0, 1, kind="POLISH_SHARD"))
    assert isinstance(step, Refuse)
    assert "POLISH_SHARD" in step.reason


def layers_after(held: set[int], step: Step) -> set[int]:
    match step:
        case Load(shard_range=missing):
            assert not held & set(missing.layers)
            return held | set(missing.layers)
        case Drop(shard_range=dropped):
            return held - set(dropped.layers)
        case _:
            return held


@given(st.none() | BOUNDS, BOUNDS, st.sampled_from(DirectiveKind))
def test_a_step_leaves_one_run_of_layers_as_directed(
    ready: tuple[int, int] | None, wanted: tuple[int, int], kind: DirectiveKind
) -> None:
    if ready is not None and ready[0] >= ready[1]:
        ready = None
    held = set(range(*ready)) if ready else set()
    told = set(range(*wanted))
    step = next_step(local_shard(ready), directive(wanted[0], wanted[1], kind))
    left = layers_after(held, step)
    assert left == set(range(min(left, default=0), max(left, default=-1) + 1))
    if isinstance(step, Refuse):
        return
    assert left == (held | told if kind is DirectiveKind.LOAD_SHARD else held - told)
