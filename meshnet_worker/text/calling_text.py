"""The pieces of an answer that may call functions: tokens in, text and calls out.

Stop strings are looked for in what is said beside the calls: inside of one they would leave half
of its JSON. The markers of calls may be special tokens, which have no text anywhere else.
"""

from collections.abc import Iterable, Iterator, Sequence

from meshnet_common.openai.pieces import Piece, TextPiece
from meshnet_common.protocol.sampling import TokenLogprobs
from meshnet_worker.text.detokenizer import Detokenizer
from meshnet_worker.text.stopping import StopMatcher
from meshnet_worker.text.tool_calls import CallRules, ToolCallParser


class CallingText:
    """Does for an answer with tools what `AnswerText` does for one without."""

    def __init__(
        self,
        detokenizer: Detokenizer,
        stops: Sequence[str],
        rules: CallRules,
        least_tokens: int = 0,
    ) -> None:
        self._detokenizer = detokenizer
        self._stops = stops
        self._matcher = StopMatcher(stops, least_tokens)
        self._parser = ToolCallParser(rules)
        self._markers = {token_id: marker for marker, token_id in rules.style.special.items()}

    @property
    def stopped(self) -> bool:
        """Whether the answer is over: by a stop string, or by the only call that there may be."""
        return self._matcher.stopped or self._parser.is_over

    @property
    def complete_calls(self) -> int:
        """How many whole calls were let go."""
        return self._parser.complete_calls

    @property
    def pending_tokens(self) -> int:
        """None: no token is told with its call."""
        return 0

    def push(
        self,
        token_id: int,
        logprobs: TokenLogprobs | None = None,  # noqa: ARG002 - no call has them
    ) -> tuple[Piece, ...]:
        """Take the next token; return what may be sent now, perhaps nothing."""
        self._matcher.next_token()
        marker = self._markers.get(token_id)
        if marker is None:
            pieces = self._parser.push(self._detokenizer.push(token_id))
        else:
            # It ends whatever character was unfinished.
            pieces = self._parser.push(self._detokenizer.finish())
            pieces += self._parser.push_special(marker)
        return tuple(self._let_go(pieces))

    def finish(self, *, is_cut: bool) -> tuple[Piece, ...]:
        """Return what was held back, once no more tokens come; `is_cut`: by a limit."""
        pieces = self._parser.push(self._detokenizer.finish())
        pieces += self._parser.finish(is_cut=is_cut)
        return (*self._let_go(pieces), *self._held_text())

    def _let_go(self, pieces: Iterable[Piece]) -> Iterator[Piece]:
        for piece in pieces:
            if self._matcher.stopped:
                return
            if isinstance(piece, TextPiece):
                yield from _text(self._matcher.push(piece.text))
            else:
                # No stop string reaches over a call.
                yield from self._held_text()
                self._matcher = StopMatcher(self._stops, self._matcher.least_tokens)
                yield piece

    def _held_text(self) -> Iterator[Piece]:
        yield from _text(self._matcher.finish())


def _text(text: str) -> Iterator[Piece]:
    if text:
        yield TextPiece(text)
