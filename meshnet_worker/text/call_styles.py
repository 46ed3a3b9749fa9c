"""How models write tool calls into their answers: the markers of each family.

    Hermes, Qwen   text <tool_call>{"name": ..., "arguments": {...}}</tool_call> and so on
    Llama 3        {"name": ..., "parameters": {...}}; {...}, perhaps behind <|python_tag|>
    Mistral        text [TOOL_CALLS][{"name": ..., "arguments": {...}}, {...}]
    and newer      text [TOOL_CALLS]name[ARGS]{...}[TOOL_CALLS]name[CALL_ID]id[ARGS]{...}

A marker may be plain text or one of the tokenizer's special tokens.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace


@dataclass(frozen=True, slots=True)
class CallStyle:
    """One family's way to write calls."""

    opening: str
    closing: str = ""
    separator: str = ""
    """What may stand between two calls behind one opening."""
    is_list: bool = False
    """Whether calls are written as a JSON list."""
    begins_bare: bool = False
    """Whether a call may be the beginning of the answer, without the opening."""
    arguments_key: str = "arguments"
    arguments_marker: str = ""
    """Where the name is no part of the JSON: what stands between it and the arguments."""
    id_marker: str = ""
    """And what may stand before an id of the call, between name and arguments."""
    has_short_ids: bool = False
    """Whether templates take only ids of nine letters and digits."""
    special: Mapping[str, int] = field(default_factory=dict)
    """The markers that are special tokens, by id: they have no text, and text is not them."""

    @property
    def markers(self) -> tuple[str, ...]:
        all_markers = (self.opening, self.closing, self.id_marker, self.arguments_marker)
        return tuple(marker for marker in all_markers if marker)

    def with_special(self, ids: Mapping[str, int]) -> "CallStyle":
        """Return the style as it is with a tokenizer that has these special tokens."""
        special = {marker: ids[marker] for marker in self.markers if marker in ids}
        return replace(self, special=special)


HERMES = CallStyle("<tool_call>", "</tool_call>")
LLAMA = CallStyle("<|python_tag|>", separator=";", begins_bare=True, arguments_key="parameters")
MISTRAL = CallStyle("[TOOL_CALLS]", is_list=True, has_short_ids=True)
NEWER_MISTRAL = CallStyle(
    "[TOOL_CALLS]", arguments_marker="[ARGS]", id_marker="[CALL_ID]", has_short_ids=True
)
