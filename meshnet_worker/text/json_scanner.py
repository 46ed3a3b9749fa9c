"""Reads one JSON object character by character, strictly, and tells what belongs to which key.

It exists because a tool call is told while it is written: a parser that wants the whole text can
say neither that its arguments have begun nor, at once, that this is no JSON after all.
"""

import json
import re
from collections.abc import Callable

from meshnet_common.errors import MeshnetError

MAX_DEPTH = 128

_SPACES = frozenset(" \t\r\n")
_HEX = frozenset("0123456789abcdefABCDEF")
_LITERALS = ("true", "false", "null")
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_NUMBER_CHARACTERS = frozenset("0123456789+-.eE")
_WORD_CHARACTERS = frozenset("truefalsn")
# Models write lines into strings as they are; no other control character may stand there.
_FORGIVEN = frozenset("\n\r\t")


class NotJsonError(MeshnetError):
    """The text is no JSON object."""


class ObjectScanner:
    """The text of one object so far, of which the first character is `{`."""

    def __init__(self) -> None:
        self._open: list[str] = []
        self._state: Callable[[str], None] = self._first
        self._written = ""
        self._escape = ""
        self._high_surrogate = False
        self._is_key = False
        self.key = ""
        """The newest key of the outermost object."""
        self.keys = 0
        """How many of these keys there were."""
        self.is_in_value = False
        """Whether the newest character belongs to that key's value."""
        self.is_in_string = False
        """Whether the newest character stands in a string, or ends it."""

    @property
    def is_complete(self) -> bool:
        return self._state == self._nothing

    def feed(self, character: str) -> None:
        """Take the next character; raises NotJsonError as soon as this can be no object."""
        self.is_in_value = False
        self.is_in_string = False
        self._state(character)

    def _first(self, character: str) -> None:
        self._expect(character == "{")
        self._enter("{")

    def _value(self, character: str) -> None:
        if character in _SPACES:
            self._mark(at_least=2)
        elif character == '"':
            self._begin_string(is_key=False)
        elif character in "{[":
            self._mark()
            self._enter(character)
        elif character in "-0123456789tfn":
            self._mark()
            self._written = character
            self._state = self._number if character in _NUMBER_CHARACTERS else self._word
        else:
            raise NotJsonError

    def _enter(self, bracket: str) -> None:
        self._open.append(bracket)
        self._expect(len(self._open) <= MAX_DEPTH)
        self._state = self._first_key if bracket == "{" else self._first_item

    def _first_key(self, character: str) -> None:
        if character == "}":
            self._leave()
        else:
            self._key(character)

    def _key(self, character: str) -> None:
        self._mark(at_least=2)
        if character not in _SPACES:
            self._expect(character == '"')
            self._begin_string(is_key=True)

    def _first_item(self, character: str) -> None:
        if character == "]":
            self._leave()
        else:
            self._value(character)

    def _colon(self, character: str) -> None:
        self._mark(at_least=2)
        if character not in _SPACES:
            self._expect(character == ":")
            self._state = self._value

    def _after_value(self, character: str) -> None:
        if character in "}]":
            self._expect(self._open[-1] == ("{" if character == "}" else "["))
            self._leave()
            return
        self._mark(at_least=2)
        if character not in _SPACES:
            self._expect(character == ",")
            self._state = self._key if self._open[-1] == "{" else self._value

    def _leave(self) -> None:
        self._mark(at_least=2)
        self._open.pop()
        self._state = self._after_value if self._open else self._nothing

    def _nothing(self, _character: str) -> None:
        raise NotJsonError

    def _number(self, character: str) -> None:
        if character in _NUMBER_CHARACTERS:
            self._mark()
            self._written += character
        else:
            self._expect(_NUMBER.fullmatch(self._written) is not None)
            self._state = self._after_value
            self._after_value(character)

    def _word(self, character: str) -> None:
        if character in _WORD_CHARACTERS:
            self._mark()
            self._written += character
            self._expect(any(literal.startswith(self._written) for literal in _LITERALS))
        else:
            self._expect(self._written in _LITERALS)
            self._state = self._after_value
            self._after_value(character)

    def _begin_string(self, *, is_key: bool) -> None:
        self._is_key = is_key
        self._written = '"'
        self._mark_string()
        self._state = self._string

    def _string(self, character: str) -> None:
        self._mark_string()
        self._expect(character == "\\" or not self._high_surrogate)
        self._expect(character >= " " or character in _FORGIVEN)
        self._keep(character)
        if character == "\\":
            self._state = self._escaped
        elif character == '"':
            self._end_string()

    def _escaped(self, character: str) -> None:
        self._mark_string()
        self._expect(character in '"\\/bfnrtu' and (character == "u" or not self._high_surrogate))
        self._keep(character)
        self._escape = ""
        self._state = self._hex if character == "u" else self._string

    def _hex(self, character: str) -> None:
        self._mark_string()
        self._expect(character in _HEX)
        self._keep(character)
        self._escape += character
        if len(self._escape) == 4:
            code = int(self._escape, 16)
            self._expect((0xDC00 <= code < 0xE000) == self._high_surrogate)
            self._high_surrogate = 0xD800 <= code < 0xDC00
            self._state = self._string

    def _end_string(self) -> None:
        if not self._is_key:
            self._state = self._after_value
            return
        if len(self._open) == 1:
            self.key = json.loads(self._written, strict=False)
            self.keys += 1
        self._state = self._colon

    def _keep(self, character: str) -> None:
        # Values may be long and nobody asks for them here.
        if self._is_key:
            self._written += character

    def _mark_string(self) -> None:
        self.is_in_string = True
        self._mark(at_least=2 if self._is_key else 1)

    def _mark(self, at_least: int = 1) -> None:
        self.is_in_value = len(self._open) >= at_least

    @staticmethod
    def _expect(is_as_expected: bool) -> None:
        if not is_as_expected:
            raise NotJsonError
