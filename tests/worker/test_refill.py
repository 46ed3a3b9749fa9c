from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshnet_worker.refill import Fill, Refill, plan_refill

KNOWN = 501


def replay(start: int, end: int, last_hop: int) -> Fill:
    return Fill(start, end, last_hop, is_replay=True)


def tokens(start: int, end: int, last_hop: int) -> Fill:
    return Fill(start, end, last_hop, is_replay=False)


@pytest.mark.parametrize(
    ("held", "kept", "refill"),
    [
        pytest.param((0, 0, 0), (0, 0, 0), Refill((), 0), id="all new"),
        pytest.param((500, 500, 500), (500, 500, 0), Refill((), 500), id="nothing is lacking"),
        pytest.param((501, 501, 501), (501, 501, 0), Refill((), 500), id="a token was lost"),
        pytest.param((500, 499, 480), (500, 499, 0), Refill((), 480), id="too little for a fill"),
        pytest.param(
            (500, 0, 500), (500, 0, 0), Refill((replay(0, 500, 1),), 500), id="the middle, kept"
        ),
        pytest.param(
            (500, 0, 500), (300, 0, 0), Refill((tokens(0, 500, 1),), 500), id="the middle, not kept"
        ),
        pytest.param((0, 500, 500), (0, 500, 0), Refill((tokens(0, 500, 0),), 500), id="the head"),
        pytest.param(
            (500, 500, 0), (500, 500, 0), Refill((replay(0, 500, 2),), 500), id="the tail, kept"
        ),
        pytest.param((500, 500, 0), (500, 0, 0), Refill((), 0), id="the tail, not kept"),
        pytest.param(
            (500, 0, 500, 0),
            (500, 0, 500, 0),
            Refill((replay(0, 500, 1), replay(0, 500, 3)), 500),
            id="two that are apart",
        ),
        pytest.param(
            (500, 0, 0, 500), (500, 0, 0, 0), Refill((tokens(0, 500, 2),), 500), id="two in a row"
        ),
    ],
)
def test_only_what_is_lacking_is_run_again(
    held: Sequence[int], kept: Sequence[int], refill: Refill
) -> None:
    assert plan_refill(held, kept, KNOWN) == refill


@given(st.data())
def test_after_its_fills_every_hop_has_what_comes_before_the_start(data: st.DataObject) -> None:
    known = data.draw(st.integers(1, 700))
    places = data.draw(st.integers(1, 6))
    held = data.draw(st.lists(st.integers(0, known), min_size=places, max_size=places))
    kept = [data.draw(st.integers(0, positions)) for positions in held]
    refill = plan_refill(held, kept, known)
    has = list(held)
    for fill in refill.fills:
        assert fill.start < fill.end <= known - 1
        if fill.is_replay:
            assert kept[fill.last_hop - 1] >= fill.end
        first = fill.last_hop if fill.is_replay else 0
        for place in range(first, fill.last_hop + 1):
            # Nobody is asked for what it could not continue.
            assert has[place] >= fill.start
            has[place] = fill.end
    assert all(positions >= refill.start for positions in has)
    assert refill.start < known
