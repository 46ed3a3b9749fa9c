"""What a parser of tool calls tells of a text, and small calls to write such texts of."""

from collections.abc import Iterable, Sequence

from meshnet_common.openai.pieces import Piece, TextPiece, ToolCallPiece
from meshnet_worker.text.call_styles import HERMES, LLAMA, MISTRAL, NEWER_MISTRAL, CallStyle
from meshnet_worker.text.tool_calls import CallRules, ToolCallParser

NAMES = frozenset({"get_weather", "add"})
SPECIAL_LLAMA = LLAMA.with_special({"<|python_tag|>": 5})
NEWER = NEWER_MISTRAL.with_special({"[TOOL_CALLS]": 5, "[ARGS]": 6, "[CALL_ID]": 7})
SPECIAL_MISTRAL = MISTRAL.with_special({"[TOOL_CALLS]": 5})
STYLES = {
    "hermes": HERMES,
    "hermes with special tokens": HERMES.with_special({"<tool_call>": 5, "</tool_call>": 6}),
    "llama": SPECIAL_LLAMA,
    "mistral": SPECIAL_MISTRAL,
    "mistral in text": MISTRAL,
    "newer mistral": NEWER,
    "newer mistral in text": NEWER_MISTRAL,
}
ARGUMENTS = '{"city": "Köln {]\\" \\ud83d\\ude00", "days": [1, 2.5e3, {"a": null}], "x": true}'


def rules(style: CallStyle, *, is_sure: bool = False) -> CallRules:
    return CallRules(style, NAMES, lambda index: f"call_{index}", is_sure)


def symbols(style: CallStyle, text: str) -> list[str]:
    """Text as single characters, but the style's special tokens as wholes."""
    for marker in style.special:
        before, found, after = text.partition(marker)
        if found:
            return [*symbols(style, before), marker, *symbols(style, after)]
    return list(text)


def parsed(style: CallStyle, text: str, *, is_cut: bool = False, is_sure: bool = False) -> "Told":
    return told(style, symbols(style, text), is_cut=is_cut, is_sure=is_sure)


def told(
    style: CallStyle, parts: Iterable[str], *, is_cut: bool = False, is_sure: bool = False
) -> "Told":
    parser = ToolCallParser(rules(style, is_sure=is_sure))
    pieces: list[Piece] = []
    for part in parts:
        is_special = part in style.special
        pieces += parser.push_special(part) if is_special else parser.push(part)
    pieces += parser.finish(is_cut=is_cut)
    return Told(pieces, parser.complete_calls)


class Told:
    """What a client has got in the end."""

    def __init__(self, pieces: Sequence[Piece], complete: int) -> None:
        self.pieces = pieces
        self.complete = complete
        self.content = "".join(piece.text for piece in pieces if isinstance(piece, TextPiece))
        calls = [piece for piece in pieces if isinstance(piece, ToolCallPiece)]
        self.calls: list[tuple[str | None, str]] = []
        for call in calls:
            if call.name is not None:
                assert (call.index, call.id) == (len(self.calls), f"call_{call.index}")
                assert call.arguments == ""
                self.calls.append((call.name, ""))
            else:
                assert (call.index, call.id) == (len(self.calls) - 1, None)
                name, arguments = self.calls[-1]
                self.calls[-1] = (name, arguments + call.arguments)

    @property
    def all(self) -> tuple[str, list[tuple[str | None, str]], int]:
        return self.content, self.calls, self.complete


def call(name: str = "get_weather", arguments: str = ARGUMENTS, key: str = "arguments") -> str:
    return f'{{"name": "{name}", "{key}": {arguments}}}'


def marked(call: str) -> str:
    return f"<tool_call>{call}</tool_call>"


WEATHER = ("get_weather", ARGUMENTS)
ADD = ("add", "{}")
