import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshnet_common.protocol import notes
from meshnet_common.protocol.notes import HeadStreamError
from meshnet_common.protocol.sampling import MOST_LOGPROBS, TokenLogprobs

FINITE = st.floats(allow_nan=False, allow_infinity=False)
TOP = st.lists(st.tuples(st.integers(0, notes.MAX_TOKEN_ID), FINITE), max_size=MOST_LOGPROBS)
LOGPROBS = st.lists(st.builds(TokenLogprobs, FINITE, TOP.map(tuple)))


def words(note: str) -> list[str]:
    return note.split()[1:]


@given(LOGPROBS)
def test_log_probabilities_are_read_exactly_as_they_were_written(
    logprobs: list[TokenLogprobs],
) -> None:
    assert notes.read_logprobs(words(notes.logprobs_note(logprobs))) == tuple(logprobs)


def test_figures_are_read_as_they_were_written() -> None:
    assert notes.read_choice(words(notes.choice_note(3))) == 3
    assert notes.read_held(words(notes.held_note(0))) == 0
    assert notes.read_usage(words(notes.usage_note(5, 7))) == (5, 7)
    assert notes.read_ahead(words(notes.alive_note(2))) == 2
    assert notes.read_ahead(words(notes.alive_note())) == 0


JUNK = {
    "a choice without a number": lambda: notes.read_choice([]),
    "a choice beyond all": lambda: notes.read_choice(["128"]),
    "two choices": lambda: notes.read_choice(["1", "2"]),
    "a negative figure": lambda: notes.read_held(["-1"]),
    "usage without a figure": lambda: notes.read_usage(["1"]),
    "a place in no line": lambda: notes.read_ahead(["x"]),
    "log probabilities that are none": lambda: notes.read_logprobs(['[["a"]]']),
    "too many others": lambda: notes.read_logprobs([f"[[0.5,[{'[1,0.5],' * 20}[1,0.5]]]]"]),
    "no list": lambda: notes.read_logprobs([]),
    "a list without end": lambda: notes.read_logprobs(["[" * 100_000]),
    "a number that is none": lambda: notes.read_logprobs(["[[NaN]]"]),
}


@pytest.mark.parametrize("read", JUNK.values(), ids=JUNK)
def test_junk_is_one_error(read: object) -> None:
    assert callable(read)
    with pytest.raises(HeadStreamError):
        read()
