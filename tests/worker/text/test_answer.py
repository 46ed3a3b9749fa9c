from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshnet_common.openai.pieces import TextPiece
from meshnet_worker.text.answer import AnswerText
from meshnet_worker.text.detokenizer import Vocabulary
from tests.worker.text.small_tokenizers import byte_level

BYTES = Vocabulary(byte_level())


def streamed(text: str, stops: list[str], tokens: int | None = None) -> tuple[list[str], bool]:
    answer = AnswerText(BYTES.detokenizer(), stops)
    ids = byte_level().encode(text).ids[:tokens]
    steps = [*(answer.push(token_id) for token_id in ids), answer.finish()]
    return ["".join(piece.text for piece in step) for step in steps], answer.stopped


def pieces_of(answer: AnswerText, ids: Sequence[int]) -> list[TextPiece]:
    return [*(piece for one in ids for piece in answer.push(one)), *answer.finish()]


def test_a_stop_string_split_over_tokens_is_never_shown() -> None:
    pieces, stopped = streamed("Thought: blue\nObservation: red", ["\nObservation:"])

    assert stopped
    assert "".join(pieces) == "Thought: blue"


@pytest.mark.parametrize("tells_tokens", [False, True])
def test_a_stop_string_among_the_least_tokens_is_text(tells_tokens: bool) -> None:
    ids = byte_level().encode("a b a b").ids
    answer = AnswerText(BYTES.detokenizer(), [" b"], len(ids) - 1, tells_tokens=tells_tokens)

    assert "".join(piece.text for piece in pieces_of(answer, ids)) == "a b a"
    assert answer.stopped


def test_what_was_held_back_is_shown_at_the_end() -> None:
    pieces, stopped = streamed("the Note", ["Noted:"])

    assert not stopped
    assert pieces[-1] == "Note"


def test_a_token_limit_inside_a_character_drops_its_bytes() -> None:
    pieces, _ = streamed("the 😀", ["😀"], tokens=len(byte_level().encode("the 😀").ids) - 1)

    assert "".join(pieces) == "the "


@given(st.text(), st.lists(st.text(min_size=1, max_size=3), max_size=4))
def test_the_answer_is_the_text_before_its_first_stop(text: str, stops: list[str]) -> None:
    whole = byte_level().decode(byte_level().encode(text).ids)
    pieces, stopped = streamed(text, stops)

    assert stopped == any(stop in whole for stop in stops)
    assert whole.startswith("".join(pieces))
    assert stopped or "".join(pieces) == whole


@given(st.text(max_size=20), st.lists(st.text(min_size=1, max_size=3), max_size=4), st.data())
def test_text_that_tells_its_tokens_is_the_same(
    text: str, stops: list[str], data: st.DataObject
) -> None:
    ids = byte_level().encode(text).ids
    ids = ids[: data.draw(st.integers(0, len(ids)))]
    plain = AnswerText(BYTES.detokenizer(), stops)
    told = AnswerText(BYTES.detokenizer(), stops, tells_tokens=True)
    pieces = pieces_of(told, ids)
    whole = "".join(piece.text for piece in pieces_of(plain, ids))
    assert "".join(piece.text for piece in pieces) == whole
    for piece in pieces:
        assert "".join(token.token for token in piece.tokens) == piece.text
    told_tokens = sum(len(piece.tokens) for piece in pieces)
    assert told_tokens == len(ids) if not told.stopped else told_tokens <= len(ids)
    assert told.pending_tokens == 0


def test_a_token_waits_with_its_text_for_what_may_become_a_stop_string() -> None:
    answer = AnswerText(BYTES.detokenizer(), ["ocean!"], tells_tokens=True)
    ids = byte_level().encode("the ocean.").ids
    pieces = [piece for token_id in ids for piece in answer.push(token_id)]
    assert "".join(piece.text for piece in pieces[:-1]).startswith("the")
    assert "".join(piece.text for piece in pieces) == "the ocean."
    assert sum(len(piece.tokens) for piece in pieces) == len(ids)


def test_a_token_in_which_a_stop_string_begins_is_cut_and_those_behind_are_dropped() -> None:
    answer = AnswerText(BYTES.detokenizer(), ["n with life"], tells_tokens=True)
    ids = byte_level().encode("woven with life").ids
    pieces = [piece for token_id in ids for piece in answer.push(token_id)]
    tokens = [token for piece in pieces for token in piece.tokens]
    assert answer.stopped
    assert "".join(token.token for token in tokens) == "wove"
    assert bytes(value for token in tokens for value in token.bytes) == b"wove"
