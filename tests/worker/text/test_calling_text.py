import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer

from meshnet_common.openai.pieces import Piece, TextPiece, ToolCallPiece
from meshnet_worker.text.call_styles import HERMES, MISTRAL
from meshnet_worker.text.calling_text import CallingText
from meshnet_worker.text.detokenizer import Vocabulary
from meshnet_worker.text.tool_calls import CallRules
from tests.worker.text.small_tokenizers import byte_level, sentencepiece

CALL = '{"name": "add", "arguments": {"a": "stop"}}'
MARKER = "[TOOL_CALLS]"


def vocabulary(tokenizer: Tokenizer) -> Vocabulary:
    own = Tokenizer.from_str(tokenizer.to_str())
    own.add_special_tokens([AddedToken(MARKER, special=True)])
    return Vocabulary(own)


def marker_id(words: Vocabulary) -> int:
    token_id = words.tokenizer.token_to_id(MARKER)
    assert token_id is not None
    return token_id


BOTH = pytest.mark.parametrize("words", [vocabulary(byte_level()), vocabulary(sentencepiece())])


class Said:
    """What becomes of a text that a model writes."""

    def __init__(
        self,
        words: Vocabulary,
        text: str,
        *,
        stops: tuple[str, ...] = (),
        least: int = 0,
        **rules: bool,
    ) -> None:
        style = MISTRAL.with_special({MARKER: marker_id(words)}) if MARKER in text else HERMES
        calls = CallRules(style, {"add"}, lambda index: f"call_{index}", **rules)
        self.text = CallingText(words.detokenizer(), stops, calls, least)
        self.pieces: list[Piece] = []
        for token_id in words.tokenizer.encode(text, add_special_tokens=False).ids:
            if not self.text.stopped:
                self.pieces += self.text.push(token_id)

    def finish(self, *, is_cut: bool = False) -> "Said":
        self.pieces += self.text.finish(is_cut=is_cut)
        return self

    @property
    def content(self) -> str:
        return "".join(piece.text for piece in self.pieces if isinstance(piece, TextPiece))

    @property
    def arguments(self) -> str:
        return "".join(one.arguments for one in self.pieces if isinstance(one, ToolCallPiece))


@BOTH
@pytest.mark.parametrize(
    "text", [f"Well, {MARKER}[{CALL}]", f"Well, <tool_call>\n{CALL}\n</tool_call>"]
)
def test_calls_are_found_behind_special_tokens_and_behind_text(
    words: Vocabulary, text: str
) -> None:
    said = Said(words, text).finish()

    assert (said.content, said.arguments) == ("Well,", '{"a": "stop"}')
    assert said.text.complete_calls == 1


@BOTH
def test_a_stop_string_counts_only_behind_the_least_tokens(words: Vocabulary) -> None:
    said = Said(words, f"stop<tool_call>{CALL}</tool_call>stop", stops=("stop",), least=10_000)

    assert said.finish().content == "stopstop"
    assert not said.text.stopped
    assert said.text.complete_calls == 1


@BOTH
def test_a_stop_string_ends_text_but_no_call(words: Vocabulary) -> None:
    said = Said(words, f"a st<tool_call>{CALL}</tool_call>op b stop c", stops=("stop",)).finish()

    assert (said.content, said.arguments) == ("a stop b ", '{"a": "stop"}')
    assert said.text.stopped


@BOTH
def test_nothing_is_told_behind_the_only_call_that_there_may_be(words: Vocabulary) -> None:
    said = Said(words, f"<tool_call>{CALL}</tool_call> and", is_parallel=False).finish()

    assert (said.content, said.arguments) == ("", '{"a": "stop"}')
    assert said.text.stopped


@BOTH
def test_a_cut_call_is_told_as_far_as_it_got(words: Vocabulary) -> None:
    said = Said(words, f"<tool_call>{CALL[:-5]}").finish(is_cut=True)

    assert (said.content, said.arguments) == ("", '{"a": "st')
    assert said.text.complete_calls == 0


def test_a_special_token_ends_what_was_unfinished() -> None:
    words = vocabulary(byte_level())
    said = Said(words, MARKER)
    half = words.tokenizer.encode("日", add_special_tokens=False).ids[:1]
    for token_id in (*half, marker_id(words)):
        said.text.push(token_id)

    assert said.finish().content == ""


@BOTH
@given(text=st.text(st.sampled_from("ab<日 stop")), stops=st.sampled_from([(), ("op",), ("日 s",)]))
def test_text_without_calls_is_the_text_that_it_would_be_without_tools(
    words: Vocabulary, text: str, stops: tuple[str, ...]
) -> None:
    said = Said(words, text, stops=stops).finish()
    whole = words.tokenizer.decode(words.tokenizer.encode(text, add_special_tokens=False).ids)
    ends = [end for stop in stops if (end := whole.find(stop)) >= 0]

    assert said.content == (whole[: min(ends)] if ends else whole)
    assert said.text.stopped == bool(ends)
