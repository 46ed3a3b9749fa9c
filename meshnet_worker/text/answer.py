"""The text of one answer: tokens in, text that a client may see out, stop strings kept back."""

from collections.abc import Sequence

from meshnet_worker.text.detokenizer import Detokenizer
from meshnet_worker.text.stopping import StopMatcher


class AnswerText:
    """Joins a detokenizer and a stop matcher; streamed and whole answers both use it.

    The caller keeps end tokens away from `push` and counts tokens.
    """

    def __init__(self, detokenizer: Detokenizer, stops: Sequence[str] = ()) -> None:
        self._detokenizer = detokenizer
        self._matcher = StopMatcher(stops)

    @property
    def stopped(self) -> bool:
        """Whether a stop string was found: the answer is over."""
        return self._matcher.stopped

    def push(self, token_id: int) -> str:
        """Take the next token; return the text that may be sent now, perhaps nothing."""
        return self._matcher.push(self._detokenizer.push(token_id))

    def finish(self) -> str:
        """Return the text that was held back, once no more tokens come."""
        return self._matcher.push(self._detokenizer.finish()) + self._matcher.finish()
