"""Tells what a token is in the place where it comes, and what others could have come there."""

import codecs

from meshnet_common.openai.pieces import TokenLogprob, TopLogprob
from meshnet_common.protocol.sampling import LEAST_LOGPROB, TokenLogprobs
from meshnet_worker.text.detokenizer import Detokenizer

_UNTOLD = TokenLogprobs(LEAST_LOGPROB)


def spell(detokenizer: Detokenizer, token_id: int, logprobs: TokenLogprobs | None) -> TokenLogprob:
    """Describe the next token, before the detokenizer has it; `token` is what it would show.

    A special token shows nothing in an answer, and so has no bytes there; among the others it has
    its name.
    """
    told = logprobs or _UNTOLD
    others = []
    for other_id, logprob in told.top:
        text, own_bytes = detokenizer.spelled(other_id)
        others.append(TopLogprob(text, _bounded(logprob), tuple(own_bytes)))
    text, own_bytes = detokenizer.spelled(token_id)
    if detokenizer.is_special(token_id):
        text, own_bytes = "", b""
    return TokenLogprob(text, _bounded(told.logprob), tuple(own_bytes), tuple(others))


def without_end(told: TokenLogprob, cut_off: str) -> TokenLogprob:
    """Describe the beginning of a token of which the end was cut off."""
    # Behind that end may be the first bytes of a character that was never completed.
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    decoder.decode(bytes(told.bytes))
    unfinished, _ = decoder.getstate()
    kept = max(0, len(told.bytes) - len(unfinished) - len(cut_off.encode()))
    return TokenLogprob(told.token, told.logprob, told.bytes[:kept], told.top_logprobs)


def _bounded(logprob: float) -> float:
    # So also what is no number: JSON knows neither that nor infinity.
    return max(LEAST_LOGPROB, logprob)
