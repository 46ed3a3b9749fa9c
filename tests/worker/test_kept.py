from hypothesis import given
from hypothesis import strategies as st

from meshnet_worker.kept import KeptActivations

ROW_BYTES = 3


def rows(start: int, tokens: int) -> bytes:
    return b"".join(
        bytes([position % 251]) * ROW_BYTES for position in range(start, start + tokens)
    )


def test_what_was_sent_in_pieces_comes_back_in_any_other() -> None:
    kept = KeptActivations(1 << 20)
    for start, tokens in ((0, 4), (4, 1), (5, 1), (6, 8)):
        kept.add(1, start, tokens, rows(start, tokens))
    assert kept.until(1) == 14
    assert kept.rows(1, 3, 4) == rows(3, 4)
    assert kept.rows(1, 0, 14) == rows(0, 14)
    assert kept.rows(1, 13, 1) == rows(13, 1)


def test_what_is_not_kept_is_nothing() -> None:
    kept = KeptActivations(1 << 20)
    kept.add(1, 0, 4, rows(0, 4))
    assert [kept.rows(2, 0, 1), kept.rows(1, 2, 3), kept.rows(1, -1, 2), kept.rows(1, 1, 0)] == [
        None,
        None,
        None,
        None,
    ]


def test_rows_behind_something_forgotten_are_not_kept() -> None:
    kept = KeptActivations(1 << 20)
    kept.add(1, 4, 2, rows(4, 2))
    assert (kept.until(1), kept.size_bytes) == (0, 0)


def test_what_is_sent_again_replaces_what_was_sent() -> None:
    kept = KeptActivations(1 << 20)
    kept.add(1, 0, 6, rows(0, 6))
    kept.add(1, 6, 2, rows(6, 2))
    kept.add(1, 6, 1, rows(106, 1))
    assert kept.rows(1, 4, 3) == rows(4, 2) + rows(106, 1)
    assert kept.until(1) == 7


def test_the_largest_is_forgotten_when_memory_is_short() -> None:
    kept = KeptActivations(10 * ROW_BYTES)
    kept.add(1, 0, 6, rows(0, 6))
    kept.add(2, 0, 3, rows(0, 3))
    kept.add(3, 0, 3, rows(0, 3))
    assert [kept.until(session) for session in (1, 2, 3)] == [0, 3, 3]


@given(
    st.lists(
        st.tuples(st.integers(1, 3), st.integers(0, 12), st.integers(1, 5)),
        max_size=40,
    ),
    st.integers(0, 40),
)
def test_what_is_kept_is_right_and_within_its_limit(
    added: list[tuple[int, int, int]], limit_rows: int
) -> None:
    kept = KeptActivations(limit_rows * ROW_BYTES)
    for session, start, tokens in added:
        kept.add(session, start, tokens, rows(start, tokens))
        assert kept.size_bytes <= limit_rows * ROW_BYTES
        for one in (1, 2, 3):
            end = kept.until(one)
            assert kept.rows(one, 0, end) == (rows(0, end) if end else None)
    for session in (1, 2, 3):
        kept.forget(session)
    assert kept.size_bytes == 0
