"""Reads what stands before a call's arguments where the function's name is no part of the JSON.

That is `name{...}`, `name[ARGS]{...}` or `name[CALL_ID]id[ARGS]{...}`.
"""

import re
from collections.abc import Container

from meshnet_worker.text.call_styles import CallStyle
from meshnet_worker.text.json_scanner import NotJsonError

MAX_CHARACTERS = 64
"""Of a name, and of an id."""

_WORD = re.compile(r"[a-zA-Z0-9_-]")


class CallHead:
    """One head so far, up to the `{` behind it; markers are wholes, or text like all else."""

    def __init__(self, style: CallStyle, names: Container[str]) -> None:
        self._special = style.special
        self._names = names
        self._word = ""
        self._is_word_over = False
        self._marker = ""
        self._markers_to_come = [style.id_marker, style.arguments_marker]
        self.name: str | None = None
        """The function, once its name has ended."""

    def feed(self, symbol: str) -> None:
        """Take what is next, up to the `{`; raises NotJsonError once this can be no head."""
        if len(symbol) > 1 or self._marker or symbol == "[":
            self._take_marker(symbol)
        elif symbol == "{":
            self._end_word()
        elif symbol.isspace():
            self._is_word_over = bool(self._word)
        else:
            # Behind the last marker stands nothing but the arguments.
            self._expect(bool(self._markers_to_come) and not self._is_word_over)
            self._expect(_WORD.match(symbol) is not None and len(self._word) < MAX_CHARACTERS)
            self._word += symbol

    def _take_marker(self, symbol: str) -> None:
        self._marker += symbol
        is_special = len(symbol) > 1
        possible = [one for one in self._markers_to_come if (one in self._special) == is_special]
        self._expect(any(one.startswith(self._marker) for one in possible))
        if self._marker in possible:
            self._end_word()
            place = self._markers_to_come.index(self._marker)
            del self._markers_to_come[: place + 1]
            self._marker, self._word, self._is_word_over = "", "", False

    def _end_word(self) -> None:
        if self.name is None:
            self._expect(self._word in self._names)
            self.name = self._word

    @staticmethod
    def _expect(is_as_expected: bool) -> None:
        if not is_as_expected:
            raise NotJsonError
