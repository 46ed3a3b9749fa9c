import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshnet_worker.engine.padding import DEPTHS, WIDTHS, Padded, Row, Size, pad, size_for

BLOCK_POSITIONS = 4
SCRATCH = 99


@st.composite
def batches(draw: st.DrawFn) -> list[Row]:
    """Sessions of any length, no two of which hold the same block."""
    lengths = draw(st.lists(st.integers(1, 10 * BLOCK_POSITIONS), min_size=1, max_size=WIDTHS[-1]))
    rows, first = [], 1000
    for length in lengths:
        count = -(-length // BLOCK_POSITIONS)
        rows.append(Row(length - 1, tuple(range(first, first + count))))
        first += count
    return rows


def fitted(rows: list[Row]) -> tuple[Size, Padded]:
    size = size_for(rows)
    assert size is not None
    return size, pad(rows, size, BLOCK_POSITIONS, SCRATCH)


@pytest.mark.parametrize(
    ("sessions", "width"),
    [(1, 1), (2, 2), (3, 4), (4, 4), (5, 8), (9, 16), (17, 32), (32, 32)],
)
def test_a_batch_takes_the_next_wider_size(sessions: int, width: int) -> None:
    assert size_for([Row(0, (7,))] * sessions) == Size(width, DEPTHS[0])


def test_the_longest_session_decides_on_the_depth() -> None:
    assert size_for([Row(0, (7,)), Row(5, (8, 9))]) == Size(2, 4)


def test_what_is_too_wide_or_too_deep_has_no_size() -> None:
    assert size_for([Row(0, (7,))] * (WIDTHS[-1] + 1)) is None
    assert size_for([Row(0, tuple(range(DEPTHS[-1] + 1)))]) is None


@given(rows=batches())
def test_every_size_has_room_and_none_that_is_smaller_would(rows: list[Row]) -> None:
    size, padded = fitted(rows)
    deepest = max(len(row.blocks) for row in rows)
    assert size.width in WIDTHS
    assert size.depth in DEPTHS
    assert not [w for w in WIDTHS if len(rows) <= w < size.width]
    assert not [d for d in DEPTHS if deepest <= d < size.depth]
    assert len(padded.positions) == len(padded.slots) == len(padded.held) == size.width
    assert {len(table) for table in padded.tables} == {size.depth}
    assert padded.held_ends == tuple(sum(padded.held[:end]) for end in range(size.width + 1))


@given(rows=batches())
def test_rows_of_sessions_keep_their_places_positions_and_blocks(rows: list[Row]) -> None:
    _, padded = fitted(rows)
    for place, row in enumerate(rows):
        assert padded.positions[place] == row.position
        assert padded.held[place] == row.position + 1
        assert padded.tables[place][: len(row.blocks)] == row.blocks
        block, inside = divmod(padded.slots[place], BLOCK_POSITIONS)
        assert (block, inside) == (row.blocks[-1], row.position % BLOCK_POSITIONS)


@given(rows=batches())
def test_nobodys_rows_touch_the_scratch_block_alone(rows: list[Row]) -> None:
    _, padded = fitted(rows)
    held = {block for row in rows for block in row.blocks}
    for place in range(len(rows), len(padded.slots)):
        assert padded.slots[place] // BLOCK_POSITIONS == SCRATCH
        assert set(padded.tables[place]) == {SCRATCH}
        assert (padded.positions[place], padded.held[place]) == (0, 1)
    assert set().union(*padded.tables) <= held | {SCRATCH}
    assert len(set(padded.slots[: len(rows)])) == len(rows)


def test_a_batch_of_nobody_can_be_made() -> None:
    padded = pad((), Size(2, 1), BLOCK_POSITIONS, SCRATCH)
    assert padded.slots == (SCRATCH * BLOCK_POSITIONS,) * 2
