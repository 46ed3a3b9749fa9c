"""Finds tool calls in an answer's text that arrives in pieces; pure, and equal however it is cut.

What is no well-formed call of an offered function stays text, so nothing that a model says is ever
lost; only blanks beside a call go with its markers. Held back is what may still become a marker,
and a call until it is all there: only where a grammar holds the model to well-formed calls (`sure`)
are arguments passed on while they are written.
"""

from collections import deque
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass

from meshnet_common.openai.pieces import Piece, ToolCallPiece
from meshnet_worker.text.call_heads import CallHead
from meshnet_worker.text.call_reader import ArgumentsReader, CallReader
from meshnet_worker.text.call_styles import CallStyle
from meshnet_worker.text.call_text import Marker, TellablePieces
from meshnet_worker.text.json_scanner import NotJsonError


@dataclass(frozen=True, slots=True)
class CallRules:
    """What calls an answer may hold, and how they look."""

    style: CallStyle
    names: Container[str]
    """The functions that can be called."""
    call_id: Callable[[int], str]
    """Names the call with an index."""
    is_sure: bool = False
    """Whether a grammar lets the model write nothing but well-formed calls."""
    is_parallel: bool = True
    """Whether the answer goes on behind a call."""
    is_forced: bool = False
    """Whether that grammar lets it write no text either."""


class ToolCallParser:
    """The pieces of one answer."""

    def __init__(self, rules: CallRules) -> None:
        self._rules = rules
        self._style = rules.style
        # Symbols are single characters, and special tokens, which are longer and have no text.
        self._due: deque[str] = deque()
        self._state: Callable[[str], None] = self._content
        self._opening = Marker(_text_marker(rules.style, rules.style.opening))
        self._closing = Marker(_text_marker(rules.style, rules.style.closing))
        self._pieces = TellablePieces()
        self._has_begun = False
        self._call = _Call()
        self._calls = 0
        self.complete_calls = 0
        """How many whole calls were passed on."""

    @property
    def is_over(self) -> bool:
        """Whether the only call that there may be is whole: nothing is told after it."""
        return self.complete_calls > 0 and not self._rules.is_parallel

    def push(self, text: str) -> list[Piece]:
        """Take the next piece of text; return what can be told now."""
        return self._take(text)

    def push_special(self, token: str) -> list[Piece]:
        """Take one of the style's special tokens."""
        return self._take((token,))

    def finish(self, *, is_cut: bool) -> list[Piece]:
        """Return what was held back; `is_cut`: the model was not done.

        A call that was cut is told as far as it got, if its name is known. What is only the
        beginning of a call for sure is not told at all.
        """
        while self._state in {self._body, self._head, self._object}:
            if self._ends_with_call(is_cut):
                return self._pieces.take()
            self._is_no_call()
            self._work()
        if self.is_over:
            return []
        if self._state == self._after and not is_cut:
            self._leave(self._closing.drop())
            self._work()
        if is_cut and self._rules.is_forced:
            return self._pieces.take()
        self._say(self._opening.drop())
        self._pieces.end_text()
        return self._pieces.take()

    def _take(self, symbols: Iterable[str]) -> list[Piece]:
        self._due.extend(symbols)
        self._work()
        return self._pieces.take()

    def _work(self) -> None:
        while self._due and not self.is_over:
            self._state(self._due.popleft())

    def _content(self, symbol: str) -> None:
        if len(symbol) > 1:
            if symbol == self._style.opening:
                self._open((symbol,))
        elif symbol == "{" and self._style.begins_bare and not self._has_begun:
            self._open(())
            self._call.is_bare = True
            self._begin_object(symbol)
            self._call.head = len(self._call.raw)
        else:
            self._say(self._opening.feed(symbol))
            if self._opening.is_found:
                self._open(self._opening.drop())

    def _say(self, text: str) -> None:
        for character in text:
            self._pieces.add_text(character)
            self._has_begun = self._has_begun or not character.isspace()

    def _open(self, opening: Iterable[str]) -> None:
        """Calls may follow: from here on all is held back."""
        self._has_begun = True
        self._call = _Call([*self._pieces.take_gap(), *opening])
        self._state = self._body

    def _body(self, symbol: str) -> None:
        if symbol == "{":
            self._begin_object(symbol)
            return
        if self._begins_head(symbol):
            self._call.named = CallHead(self._style, self._rules.names)
            self._state = self._head
            self._head(symbol)
            return
        self._call.raw.append(symbol)
        if symbol == "[" and not self._call.in_list:
            self._call.in_list = True
        elif not symbol.isspace():
            self._is_no_call()

    def _begins_head(self, symbol: str) -> bool:
        is_word = symbol != "[" and not symbol.isspace()
        return is_word and bool(self._style.arguments_marker) and not self._call.in_list

    def _head(self, symbol: str) -> None:
        """Before the arguments, where the name is no part of them."""
        call = self._call
        try:
            call.feed_head(symbol)
        except NotJsonError:
            call.raw.append(symbol)
            self._is_no_call()
            return
        if symbol == "{" and call.name is not None:
            self._read_object(ArgumentsReader(call.name), symbol)
        else:
            call.raw.append(symbol)

    def _begin_object(self, symbol: str) -> None:
        self._read_object(CallReader(self._rules.names), symbol)

    def _read_object(self, reader: CallReader | ArgumentsReader, symbol: str) -> None:
        self._call.reader = reader
        self._state = self._object
        self._object(symbol)

    def _object(self, symbol: str) -> None:
        call = self._call
        call.raw.append(symbol)
        try:
            call.feed(symbol)
        except NotJsonError:
            self._is_no_call()
            return
        if call.is_complete:
            self._tell()
            self.complete_calls += 1
            self._calls += 1
            self._state = self._after
        elif self._rules.is_sure and call.name is not None:
            self._tell()

    def _after(self, symbol: str) -> None:
        """Behind a call: another one, the closing marker, or text again."""
        call = self._call
        if self._closes(symbol):
            if self._closing.is_found or len(symbol) > 1:
                self._closing.drop()
                self._leave(())
        elif symbol == ("," if call.in_list else self._style.separator):
            self._call = _Call([symbol], in_list=call.in_list, follows_another=True)
            self._state = self._body
        elif symbol == "]" and call.in_list:
            call.in_list = False
        elif not symbol.isspace():
            self._leave((*self._closing.drop(), symbol))

    def _closes(self, symbol: str) -> bool:
        """Whether this is the closing marker, or the next character of it."""
        if len(symbol) > 1:
            return symbol == self._style.closing
        return self._closing.goes_on(symbol)

    def _leave(self, symbols: Iterable[str]) -> None:
        self._pieces.follows_call = True
        self._state = self._content
        self._due.extendleft(reversed(tuple(symbols)))

    def _is_no_call(self) -> None:
        """Let what was held back be text, in which there may be calls further on."""
        call = self._call
        self._state = self._content
        if call.is_told:
            # A grammar was promised to prevent it, and the client has the rest.
            self._calls += 1
            self._leave(call.raw[-1:])
            return
        self._say("".join(symbol for symbol in call.raw[: call.head] if len(symbol) == 1))
        self._due.extendleft(reversed(call.raw[call.head :]))

    def _ends_with_call(self, is_cut: bool) -> bool:
        """Whether the answer ends inside a call that can be told, or between two of them."""
        call = self._call
        if call.is_told or (is_cut and call.name is not None):
            self._tell()
            return True
        is_between = self._state == self._body and call.follows_another
        return is_between or (is_cut and self._rules.is_sure)

    def _tell(self) -> None:
        call, index = self._call, self._calls
        if not call.is_told:
            call.is_told = True
            self._pieces.add_call(ToolCallPiece(index, self._rules.call_id(index), call.name))
        arguments = call.take_arguments()
        if arguments:
            self._pieces.add_call(ToolCallPiece(index, arguments=arguments))


class _Call:
    """One call under way, with all that becomes text if it is none."""

    def __init__(
        self, raw: Iterable[str] = (), *, in_list: bool = False, follows_another: bool = False
    ) -> None:
        self.raw = list(raw)
        self.head = len(self.raw)
        """How much of it is no call again."""
        self.in_list = in_list
        self.follows_another = follows_another
        self.is_bare = False
        self.is_told = False
        self.reader: CallReader | ArgumentsReader | None = None
        self.named: CallHead | None = None
        """What stands before the arguments, where that is the name."""

    @property
    def name(self) -> str | None:
        told = self.reader or self.named
        return told.name if told else None

    def feed_head(self, symbol: str) -> None:
        assert self.named is not None
        self.named.feed(symbol)

    @property
    def is_complete(self) -> bool:
        return self.reader is not None and self.reader.is_complete

    def feed(self, symbol: str) -> None:
        if self.reader is None or len(symbol) > 1:
            raise NotJsonError
        self.reader.feed(symbol)
        if self.is_bare and self.is_complete and not self.reader.has_arguments:
            # Any object with a name may look like this.
            raise NotJsonError

    def take_arguments(self) -> str:
        return self.reader.take() if self.reader else ""


def _text_marker(style: CallStyle, marker: str) -> str:
    return "" if marker in style.special else marker
