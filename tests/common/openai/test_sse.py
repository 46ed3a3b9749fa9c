from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshnet_common.openai.sse import (
    DONE_EVENT,
    KEEP_ALIVE_COMMENT,
    MAX_HELD_BYTES,
    EventBoundaries,
    EventTooLongError,
    comment,
    data_event,
    noted_event,
)

STREAM = b"".join(
    [
        comment("accepted; queued position 2"),
        KEEP_ALIVE_COMMENT,
        data_event('{"text": "Hé 😀"}'.encode()),
        KEEP_ALIVE_COMMENT,
        data_event(b'{"text": "\\n\\n"}'),
        b"data: one\r\ndata: two\r\n\r\n",
        DONE_EVENT,
    ]
)


def fed(stream: bytes, cuts: list[int]) -> tuple[EventBoundaries, list[bytes]]:
    boundaries = EventBoundaries()
    edges = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    pieces = [stream[a:b] for a, b in pairwise(edges)]
    return boundaries, [boundaries.feed(piece) for piece in pieces]


def test_an_event_is_one_data_line_and_a_blank_one() -> None:
    assert data_event(b"{}") == b"data: {}\n\n"


def test_a_comment_ends_with_a_single_newline() -> None:
    assert comment("accepted; queued position 0") == b": accepted; queued position 0\n"
    assert KEEP_ALIVE_COMMENT == b": keep-alive\n"


def test_a_comment_cannot_smuggle_in_an_event() -> None:
    assert comment("a\n\ndata: b") == b": a data: b\n"


def test_notes_and_what_they_explain_are_one_block() -> None:
    assert noted_event(["a", "b"], b"{}") == b": a\n: b\ndata: {}\n\n"
    assert noted_event(["a"]) == b": a\n\n"


@given(st.lists(st.integers(0, len(STREAM))))
def test_any_chunking_passes_the_same_bytes(cuts: list[int]) -> None:
    boundaries, passed = fed(STREAM, cuts)

    assert b"".join(passed) == STREAM
    assert (boundaries.events, boundaries.last_data) == (4, b"[DONE]")


@given(st.integers(0, len(STREAM)))
def test_whatever_was_passed_ends_between_two_events(cut: int) -> None:
    passed = EventBoundaries().feed(STREAM[:cut])

    assert passed == b"" or passed.endswith((b"\n\n", b"\n\r\n", b"e\n", b"2\n"))


def test_comments_are_passed_at_once_and_commit_nothing() -> None:
    boundaries = EventBoundaries()

    assert boundaries.feed(KEEP_ALIVE_COMMENT) == KEEP_ALIVE_COMMENT
    assert boundaries.events == 0


def test_a_half_event_is_held_back() -> None:
    boundaries = EventBoundaries()

    assert boundaries.feed(b"data: one\n\ndata: tw") == b"data: one\n\n"
    assert boundaries.feed(b"o\n") == b""
    assert boundaries.feed(b"\n") == b"data: two\n\n"


def test_the_last_data_is_that_of_the_last_whole_event() -> None:
    boundaries = EventBoundaries()
    boundaries.feed(b'data:{"n": 1}\r\n\r\n: said\ndata: {"n"')
    assert (boundaries.events, boundaries.last_data) == (1, b'{"n": 1}')

    boundaries.feed(b": 2}\n\n")
    assert (boundaries.events, boundaries.last_data) == (2, b'{"n": 2}')


def test_what_holds_no_data_commits_nothing() -> None:
    boundaries = EventBoundaries()

    assert boundaries.feed(b"event: ping\n\n") == b"event: ping\n\n"
    assert (boundaries.events, boundaries.last_data) == (0, b"")


def test_an_event_without_end_is_refused() -> None:
    with pytest.raises(EventTooLongError):
        EventBoundaries().feed(b"data: " + b"x" * MAX_HELD_BYTES)
