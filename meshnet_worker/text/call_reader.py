"""Reads the JSON object of one tool call while it is written: a name, and arguments to it.

Models write `{"name": ..., "arguments": {...}}`, in either order, Llama with `parameters`; some
write the arguments as a string of JSON, and `type` or `id` besides. Others write nothing but the
arguments as JSON, behind the name.
"""

import json
from collections.abc import Container

from meshnet_common.openai.tools import read_arguments
from meshnet_worker.text.json_scanner import NotJsonError, ObjectScanner

ESCAPES = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
"""Models write these into strings as they are, where JSON has them escaped."""

_ARGUMENTS = ("arguments", "parameters")
_KEYS = frozenset({"name", "type", "id", *_ARGUMENTS})
# How the values of a call may begin; arguments may be an object, a string of one, or null.
_BEGINNINGS = {"name": '"', "arguments": '{"n', "parameters": '{"n'}


class CallReader:
    """One call so far, from its first `{` on; only functions among `names` can be called."""

    def __init__(self, names: Container[str]) -> None:
        self._names = names
        self._scanner = ObjectScanner()
        self._values: dict[str, list[str]] = {}
        self._keys = 0
        self._taken = 0
        self.name: str | None = None
        """The function, once its name is all there."""

    @property
    def is_complete(self) -> bool:
        return self._scanner.is_complete

    @property
    def has_arguments(self) -> bool:
        """Whether anything is said of the arguments, be it that there are none."""
        return any(key in self._values for key in _ARGUMENTS)

    def feed(self, character: str) -> None:
        """Take the next character; raises NotJsonError as soon as this can be no call."""
        scanner = self._scanner
        scanner.feed(character)
        if scanner.keys != self._keys:
            self._keys = scanner.keys
            self._begin(scanner.key)
        if scanner.is_in_value:
            self._add(character)
        elif self.name is None and self._values.get("name"):
            self._name_ends()
        if self.is_complete:
            self._check()

    def take(self) -> str:
        """Return what is new of the arguments: in the end all that was taken is a JSON object."""
        written = self._written
        if not written or written[0] == "{":
            new = "".join(written[self._taken :])
            self._taken = len(written)
            return new or ("{}" if self.is_complete and not written else "")
        # A string cannot be told before it is known to hold an object.
        return self._unwrapped() if self.is_complete else ""

    def _begin(self, key: str) -> None:
        is_second = key in _ARGUMENTS and self.has_arguments
        if key not in _KEYS or key in self._values or is_second:
            raise NotJsonError
        self._values[key] = []

    def _add(self, character: str) -> None:
        key = self._scanner.key
        value = self._values[key]
        if not value and character not in _BEGINNINGS.get(key, character):
            raise NotJsonError
        value.append(ESCAPES.get(character, character) if self._scanner.is_in_string else character)

    def _name_ends(self) -> None:
        name = json.loads("".join(self._values["name"]))
        if name not in self._names:
            raise NotJsonError
        self.name = name

    def _check(self) -> None:
        if self.name is None:
            raise NotJsonError
        if self._written and self._written[0] == '"' and read_arguments(self._string()) is None:
            raise NotJsonError

    @property
    def _written(self) -> list[str]:
        return next((self._values[key] for key in _ARGUMENTS if key in self._values), [])

    def _unwrapped(self) -> str:
        text = self._string() if self._written[0] == '"' else ""
        return text if text.lstrip().startswith("{") else "{}"

    def _string(self) -> str:
        return str(json.loads("".join(self._written)))


class ArgumentsReader:
    """The arguments of a call whose name stands before them."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.has_arguments = True
        self._scanner = ObjectScanner()
        self._new: list[str] = []

    @property
    def is_complete(self) -> bool:
        return self._scanner.is_complete

    def feed(self, character: str) -> None:
        """Take the next character; raises NotJsonError as soon as this can be no object."""
        self._scanner.feed(character)
        is_plain = not self._scanner.is_in_string
        self._new.append(character if is_plain else ESCAPES.get(character, character))

    def take(self) -> str:
        """Return what is new of the arguments."""
        new, self._new = "".join(self._new), []
        return new
