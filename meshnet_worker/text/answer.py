"""The text of one answer: tokens in, text that a client may see out, stop strings kept back.

Where a client wants to know how likely the tokens were, text goes out by whole tokens, each piece
with those that it comes from. What becomes of a token follows from its place in the text: cut off
with a stop string, held back while that may still come, or let go.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from meshnet_common.openai.pieces import TextPiece, TokenLogprob
from meshnet_common.protocol.sampling import TokenLogprobs
from meshnet_worker.text.detokenizer import Detokenizer
from meshnet_worker.text.spelling import spell, without_end
from meshnet_worker.text.stopping import StopMatcher

Pieces = tuple[TextPiece, ...]


@dataclass(slots=True)
class _Pending:
    """A token whose text is not let go yet."""

    text: str
    told: TokenLogprob


class AnswerText:
    """Joins a detokenizer and a stop matcher; streamed and whole answers both use it.

    The caller keeps end tokens away from `push` and counts tokens.
    """

    def __init__(
        self,
        detokenizer: Detokenizer,
        stops: Sequence[str] = (),
        least_tokens: int = 0,
        *,
        tells_tokens: bool = False,
    ) -> None:
        self._detokenizer = detokenizer
        self._matcher = StopMatcher(stops, least_tokens)
        self._tells_tokens = tells_tokens
        self._pending: deque[_Pending] = deque()
        self._cleared = 0
        """Characters of pending tokens, from the first one on, that are part of no stop string."""

    @property
    def stopped(self) -> bool:
        """Whether a stop string was found: the answer is over."""
        return self._matcher.stopped

    @property
    def pending_tokens(self) -> int:
        """How many of the newest tokens are still to be told, where they are told at all."""
        return len(self._pending)

    @property
    def complete_calls(self) -> int:
        """How many tools were called: text calls none."""
        return 0

    def push(self, token_id: int, logprobs: TokenLogprobs | None = None) -> Pieces:
        """Take the next token; return what may be sent now, perhaps nothing."""
        self._matcher.next_token()
        if not self._tells_tokens:
            return _some(self._matcher.push(self._detokenizer.push(token_id)))
        told = spell(self._detokenizer, token_id, logprobs)
        text = self._detokenizer.push(token_id)
        self._pending.append(_Pending(text, told))
        self._cleared += len(self._matcher.push(text))
        return self._let_go()

    def finish(self, *, is_cut: bool = False) -> Pieces:  # noqa: ARG002 - of no matter for text
        """Return what was held back, once no more tokens come."""
        rest = self._detokenizer.finish()
        cleared = self._matcher.push(rest) + self._matcher.finish()
        if not self._tells_tokens:
            return _some(cleared)
        if rest and self._pending:
            self._pending[-1].text += rest
        self._cleared += len(cleared)
        return self._let_go(is_end=True)

    def _let_go(self, *, is_end: bool = False) -> Pieces:
        """Take what is decided out of the pending tokens."""
        gone = [self._pending.popleft() for _ in range(self._decide())]
        if self.stopped:
            gone += self._before_the_stop()
        elif is_end:
            gone += self._pending
            self._pending.clear()
        text = "".join(one.text for one in gone)
        return (TextPiece(text, tuple(_told(one) for one in gone)),) if gone else ()

    def _decide(self) -> int:
        """Return how many tokens are wholly cleared, and count their characters no longer.

        One that ends inside a character shows nothing, and waits for the one that completes it.
        """
        decided = 0
        for place, one in enumerate(self._pending, 1):
            if self._cleared < len(one.text):
                break
            self._cleared -= len(one.text)
            decided = place if one.text else decided
        return decided

    def _before_the_stop(self) -> list[_Pending]:
        """What is left before the stop string: the beginning of the token in which that begins."""
        before = []
        while self._cleared and self._pending:
            one = self._pending.popleft()
            kept = one.text[: self._cleared]
            told = without_end(one.told, one.text[self._cleared :])
            self._cleared -= len(kept)
            before.append(_Pending(kept, told))
        self._pending.clear()
        return before


def _some(text: str) -> Pieces:
    return (TextPiece(text),) if text else ()


def _told(one: _Pending) -> TokenLogprob:
    told = one.told
    return TokenLogprob(one.text, told.logprob, told.bytes, told.top_logprobs)
