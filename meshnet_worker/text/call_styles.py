"""How models write tool calls into their answers: the markers of each family.

    Hermes, Qwen   text <tool_call>{"name": ..., "arguments": {...}}</tool_call> and so on
    Llama 3        {"name": ..., "parameters": {...}}; {...}, perhaps behind <|python_tag|>
    Mistral        text [TOOL_CALLS][{"name": ..., "arguments": {...}}, {...}]

A marker may be plain text or one of the tokenizer's special tokens.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace


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
    special: frozenset[str] = frozenset()
    """The markers that are special tokens: they have no text, and text is not them."""

    @property
    def markers(self) -> tuple[str, ...]:
        return (self.opening, self.closing) if self.closing else (self.opening,)

    def with_special(self, special: Iterable[str]) -> "CallStyle":
        """Return the style as it is with a tokenizer that has these special tokens."""
        return replace(self, special=frozenset(self.markers) & frozenset(special))


HERMES = CallStyle("<tool_call>", "</tool_call>")
LLAMA = CallStyle("<|python_tag|>", separator=";", begins_bare=True, arguments_key="parameters")
MISTRAL = CallStyle("[TOOL_CALLS]", is_list=True)
