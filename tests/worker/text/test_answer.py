from hypothesis import given
from hypothesis import strategies as st

from meshnet_worker.text.answer import AnswerText
from meshnet_worker.text.detokenizer import Vocabulary
from tests.worker.text.small_tokenizers import byte_level

BYTES = Vocabulary(byte_level())


def streamed(text: str, stops: list[str], tokens: int | None = None) -> tuple[list[str], bool]:
    answer = AnswerText(BYTES.detokenizer(), stops)
    ids = byte_level().encode(text).ids[:tokens]
    return [*(answer.push(token_id) for token_id in ids), answer.finish()], answer.stopped


def test_a_stop_string_split_over_tokens_is_never_shown() -> None:
    pieces, stopped = streamed("Thought: blue\nObservation: red", ["\nObservation:"])

    assert stopped
    assert "".join(pieces) == "Thought: blue"


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
