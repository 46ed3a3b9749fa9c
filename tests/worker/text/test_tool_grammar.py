from typing import Any

import msgspec
import pytest
from llguidance import LLMatcher, LLTokenizer
from tokenizers import Tokenizer

from meshnet_common.openai.formats import TEXT, JsonObject, JsonSchema, ResponseFormat, grammar_text
from meshnet_common.openai.pieces import ToolCallPiece
from meshnet_common.openai.tools import NO_TOOLS, ToolBody, ToolUse, read_tool_use
from meshnet_worker.text.call_styles import HERMES, LLAMA, MISTRAL, NEWER_MISTRAL, CallStyle
from meshnet_worker.text.calling_text import CallingText
from meshnet_worker.text.detokenizer import Vocabulary
from meshnet_worker.text.grammars import check_grammar
from meshnet_worker.text.tool_calls import CallRules
from meshnet_worker.text.tool_grammar import answer_grammar, holds_calls
from tests.worker.text.small_tokenizers import END, byte_level


class Family:
    """A family's style, with a tokenizer in which some of the markers are special tokens."""

    def __init__(self, style: CallStyle, special: tuple[str, ...]) -> None:
        self.words = Tokenizer.from_str(byte_level().to_str())
        self.words.add_special_tokens(list(special))
        ids = {marker: self.words.token_to_id(marker) for marker in special}
        self.style = style.with_special({one: place for one, place in ids.items() if place})
        eos_id = self.words.token_to_id(END)
        self._guided = LLTokenizer(self.words.to_str(), eos_token=eos_id)

    def ids(self, text: str) -> list[int]:
        return self.words.encode(text, add_special_tokens=False).ids

    def begins(self, grammar: str, text: str) -> LLMatcher | None:
        """What follows an answer that begins with this text; None if none may."""
        matcher = LLMatcher(self._guided, grammar)
        assert not matcher.is_error(), matcher.get_error()
        ids = self.ids(text)
        return matcher if matcher.try_consume_tokens(ids) == len(ids) else None

    def allows(self, grammar: str, text: str) -> bool:
        matcher = self.begins(grammar, text)
        return matcher is not None and matcher.is_accepting()


FAMILIES = {
    "hermes": Family(HERMES, ()),
    "hermes with special tokens": Family(HERMES, ("<tool_call>", "</tool_call>")),
    "llama": Family(LLAMA, ("<|python_tag|>",)),
    "mistral": Family(MISTRAL, ("[TOOL_CALLS]",)),
    "mistral in text": Family(MISTRAL, ()),
    "newer mistral": Family(NEWER_MISTRAL, ("[TOOL_CALLS]", "[ARGS]")),
    "newer mistral with ids": Family(NEWER_MISTRAL, ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]")),
    "newer mistral in text": Family(NEWER_MISTRAL, ()),
}
EACH = pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


def use(choice: Any = None, *, strict: bool = False, is_parallel: bool | None = None) -> ToolUse:
    weather = {"name": "get_weather", "parameters": CITY, "strict": strict}
    tools = [{"type": "function", "function": one} for one in (weather, {"name": "add"})]
    return read_tool_use(msgspec.convert(tools, list[ToolBody]), choice, is_parallel)


def call_grammar(style: CallStyle, wanted: ToolUse) -> str:
    return answer_grammar(style, wanted, TEXT)


def call(style: CallStyle, arguments: str = '{"city": "Bonn"}', name: str = "get_weather") -> str:
    if style.arguments_marker:
        call_id = f"{style.id_marker}abc123xyz" if style.id_marker in style.special else ""
        return f"{name}{call_id}{style.arguments_marker}{arguments}"
    return f'{{"name": "{name}", "{style.arguments_key}": {arguments}}}'


def marked(style: CallStyle, *calls: str) -> str:
    """Calls as the family's templates show them."""
    if style.is_list:
        return f"{style.opening} [{', '.join(calls)}]"
    if style.closing:
        return "\n".join(f"{style.opening}\n{one}\n{style.closing}" for one in calls)
    return style.opening + style.opening.join(calls)


def forced(style: CallStyle, *calls: str) -> str:
    return "".join(calls) if style.begins_bare else marked(style, *calls)


@EACH
def test_a_forced_answer_is_a_call_that_its_schema_allows(family: Family) -> None:
    style, grammar = family.style, call_grammar(family.style, use("required"))

    check_grammar(grammar, "tools")
    assert family.allows(grammar, forced(style, call(style)))
    assert family.allows(grammar, forced(style, call(style, "{}", "add")))
    for wrong in (
        "Hello",
        forced(style, call(style, "{}")),
        forced(style, call(style, '{"city": 3}')),
        forced(style, call(style, '{"city": "Bonn", "land": "x"}')),
        forced(style, call(style, "{}", "rm")),
        forced(style, call(style)) + " and",
    ):
        assert not family.allows(grammar, wrong)


@EACH
def test_a_named_call_is_one_call_of_that_function(family: Family) -> None:
    named = {"type": "function", "function": {"name": "get_weather"}}
    style, grammar = family.style, call_grammar(family.style, use(named))

    assert family.allows(grammar, forced(style, call(style)))
    assert not family.begins(grammar, forced(style, call(style, "{}", "add")))
    assert not family.begins(grammar, forced(style, call(style), call(style)))


@EACH
def test_several_calls_may_be_forced_at_once_if_that_is_wanted(family: Family) -> None:
    style = family.style
    two = forced(style, call(style), call(style, "{}", "add"))
    # Templates of Llama show one call a turn only.
    is_one = style.begins_bare

    several = call_grammar(style, use("required", is_parallel=True))
    assert family.allows(several, two) is not is_one
    assert not family.allows(call_grammar(style, use("required")), two)


@EACH
def test_a_free_answer_is_held_to_nothing_unless_a_function_is_strict(family: Family) -> None:
    assert call_grammar(family.style, use()) == ""
    assert call_grammar(family.style, use("none", strict=True)) == ""


@EACH
def test_a_free_answer_is_text_and_calls_of_which_the_strict_ones_keep_to_their_schemas(
    family: Family,
) -> None:
    style, grammar = family.style, call_grammar(family.style, use(strict=True))

    check_grammar(grammar, "tools")
    for right in (
        "Hello < [T {} there",
        "Look: " + marked(style, call(style)),
        marked(style, call(style, '{"any": [1]}', "add")),
        marked(style, call(style)) + "\nand " + marked(style, call(style)) + " done",
    ):
        assert family.allows(grammar, right)
    for wrong in (
        "Look: " + marked(style, call(style, '{"town": "Bonn"}')),
        marked(style, call(style, "{}", "rm")),
        f"Look: {style.opening} here",
    ):
        assert not family.begins(grammar, wrong)


@EACH
def test_what_a_grammar_forces_is_what_the_parser_finds(family: Family) -> None:
    style = family.style
    text = forced(style, call(style))
    calls = CallRules(style, {"get_weather"}, str, is_sure=True)
    said = CallingText(Vocabulary(family.words).detokenizer(), (), calls)
    pieces = [piece for token_id in family.ids(text) for piece in said.push(token_id)]

    assert family.allows(call_grammar(style, use("required")), text)
    assert all(isinstance(piece, ToolCallPiece) for piece in pieces)
    assert len(pieces) > 5
    assert said.complete_calls == 1


SUNNY = JsonSchema(
    name="sunny",
    schema={
        "type": "object",
        "properties": {"sunny": {"type": "boolean"}},
        "required": ["sunny"],
        "additionalProperties": False,
    },
)


@EACH
def test_an_answer_with_a_format_is_in_it_or_calls(family: Family) -> None:
    style, grammar = family.style, answer_grammar(family.style, use(), SUNNY)

    check_grammar(grammar, "tools")
    for right in ('{"sunny": true}', forced(style, call(style, '{"any": 1}'))):
        assert family.allows(grammar, right)
    for wrong in ("Hello", '{"rain": true}', forced(style, call(style, "{}", "rm"))):
        assert not family.allows(grammar, wrong)
    assert family.allows(answer_grammar(style, use(), JsonObject()), '{"rain": 1}')


@EACH
@pytest.mark.parametrize("answer_format", [TEXT, SUNNY])
@pytest.mark.parametrize("place", ["$defs", "definitions"])
def test_schemas_may_refer_to_their_own_definitions(
    family: Family, answer_format: ResponseFormat, place: str
) -> None:
    schema = {
        "type": "object",
        "properties": {"at": {"$ref": f"#/{place}/hour"}},
        "required": ["at"],
        place: {"hour": {"type": "integer", "minimum": 0, "maximum": 23}},
    }
    tool = {"type": "function", "function": {"name": "wake", "parameters": schema, "strict": True}}
    wanted = read_tool_use(msgspec.convert([tool], list[ToolBody]), None, None)
    style, grammar = family.style, answer_grammar(family.style, wanted, answer_format)

    check_grammar(grammar, "tools")
    assert family.allows(grammar, forced(style, call(style, '{"at": 7}', "wake")))
    assert not family.allows(grammar, forced(style, call(style, '{"at": 24}', "wake")))


def test_a_format_is_for_answers_that_are_no_calls() -> None:
    assert answer_grammar(HERMES, NO_TOOLS, SUNNY) == grammar_text(SUNNY)
    assert answer_grammar(HERMES, NO_TOOLS, TEXT) == ""
    forced_use = use("required")
    assert answer_grammar(HERMES, forced_use, SUNNY) == answer_grammar(HERMES, forced_use, TEXT)


def test_calls_are_sure_where_nothing_else_can_begin_like_them() -> None:
    assert not holds_calls(LLAMA, use(), TEXT)
    assert holds_calls(LLAMA, use(strict=True), TEXT)
    assert holds_calls(LLAMA, use("required"), SUNNY)
    assert not holds_calls(LLAMA, use(), SUNNY)
    assert holds_calls(HERMES, use(), SUNNY)


def test_an_object_at_the_beginning_is_a_call_where_calls_begin_bare() -> None:
    llama = FAMILIES["llama"]

    assert not llama.begins(call_grammar(llama.style, use(strict=True)), '{"a')
