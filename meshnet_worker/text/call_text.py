"""The text around tool calls: the markers in it, and what of it can be told."""

from meshnet_common.openai.pieces import Piece, TextPiece, ToolCallPiece


class Marker:
    """Looks for one marker in text; an empty one is never there."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._held = ""

    @property
    def is_found(self) -> bool:
        return bool(self._text) and self._held == self._text

    def feed(self, character: str) -> str:
        """Take the next character; return what belongs to no marker."""
        held = self._held + character
        undecided = next(
            (held[n:] for n in range(len(held)) if self._text.startswith(held[n:])), ""
        )
        self._held = undecided
        return held[: len(held) - len(undecided)]

    def goes_on(self, character: str) -> bool:
        """Take the next character if it goes on with the marker."""
        is_next = self._text.startswith(self._held + character)
        self._held += character if is_next else ""
        return is_next

    def drop(self) -> str:
        """Forget and return what is held."""
        held, self._held = self._held, ""
        return held


class TellablePieces:
    """What can be told: text as one piece, without the blanks beside calls."""

    def __init__(self) -> None:
        self._pieces: list[Piece] = []
        self._text: list[str] = []
        self._gap: list[str] = []
        self.follows_call = False

    def add_text(self, character: str) -> None:
        self._gap.append(character)
        if not character.isspace():
            self.end_text()
            self.follows_call = False

    def end_text(self) -> None:
        """Let blanks be text: no call follows them."""
        if self.follows_call:
            while self._gap and self._gap[0].isspace():
                self._gap.pop(0)
        self._text += self._gap
        self._gap = []

    def take_gap(self) -> list[str]:
        """Return blanks in front of what may be a call."""
        gap, self._gap = self._gap, []
        return gap

    def add_call(self, piece: ToolCallPiece) -> None:
        self._end_piece()
        last = self._pieces[-1] if self._pieces else None
        if piece.name is None and isinstance(last, ToolCallPiece) and last.name is None:
            piece = ToolCallPiece(piece.index, arguments=last.arguments + piece.arguments)
            self._pieces.pop()
        self._pieces.append(piece)

    def take(self) -> list[Piece]:
        self._end_piece()
        pieces, self._pieces = self._pieces, []
        return pieces

    def _end_piece(self) -> None:
        if self._text:
            self._pieces.append(TextPiece("".join(self._text)))
            self._text = []
