"""One generation as its Head Worker drives it; pure: events in, segments to send out.

The prompt goes out in Prefill Chunks while credits last, each Decode Step as soon as the token
before it has come back. Positions count prompt and answer from 0.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from meshnet_common.protocol.bodies import (
    SEGMENT_PREFILL,
    SEGMENT_SAMPLE,
    ChosenToken,
    Epoch,
    ProgressBody,
    Segment,
)

RESERVE_POSITIONS = 512
"""The answer's positions are reserved in runs of this many, not all at once."""
RESERVE_AHEAD = 64
"""The next run is reserved when fewer than this many positions are left."""


@dataclass(slots=True)
class Generation:
    """The state of one generation; `max_new_tokens` bounds the answer."""

    session_id: str
    epoch: Epoch
    prompt_ids: tuple[int, ...]
    max_new_tokens: int
    end_ids: frozenset[int]
    min_new_tokens: int
    chunk_tokens: int
    credits: int = 0
    sent: int = 0
    """Positions that are sent down the Route."""
    reserved: int = 0
    """Positions for which every Hop has reserved KV or was asked to."""
    chosen: list[int] = field(default_factory=list)

    @property
    def limit(self) -> int:
        """Positions of the whole Session; the last token is never fed back."""
        return len(self.prompt_ids) + self.max_new_tokens - 1

    @property
    def finished(self) -> bool:
        return self.ended_by_model or len(self.chosen) >= self.max_new_tokens

    @property
    def ended_by_model(self) -> bool:
        if not self.chosen or len(self.chosen) <= self.min_new_tokens:
            return False
        return self.chosen[-1] in self.end_ids

    def next_reservation(self) -> int | None:
        """How many positions to reserve now, in all; None while enough are left."""
        used = len(self.prompt_ids) + len(self.chosen)
        if self.reserved >= self.limit or self.reserved - used >= RESERVE_AHEAD:
            return None
        self.reserved = min(self.limit, used + RESERVE_POSITIONS)
        return self.reserved

    def prompt_segments(self) -> Iterator[Segment]:
        """The Prefill Chunks that may go out now."""
        while self.credits > 0 and self.sent < len(self.prompt_ids):
            ids = self.prompt_ids[self.sent : self.sent + self.chunk_tokens]
            is_last = self.sent + len(ids) == len(self.prompt_ids)
            wants_token = SEGMENT_SAMPLE if is_last else 0
            yield self._segment(ids, SEGMENT_PREFILL | wants_token)
            self.credits -= 1

    def on_progress(self, progress: ProgressBody) -> Iterator[Segment]:
        """A chunk has passed the Tail Worker: its credit comes back."""
        if progress.epoch == self.epoch:
            self.credits += 1
        return self.prompt_segments()

    def on_token(self, token: ChosenToken) -> bool:
        """Take the next token; False for one that is stale or a repetition."""
        expected = len(self.prompt_ids) + len(self.chosen)
        if token.epoch != self.epoch or token.position != expected or self.finished:
            return False
        self.chosen.append(token.token_id)
        return True

    def decode_segment(self) -> Segment:
        """The Decode Step that feeds the newest token back."""
        return self._segment((self.chosen[-1],), SEGMENT_SAMPLE)

    def _segment(self, ids: tuple[int, ...], flags: int) -> Segment:
        segment = Segment(self.session_id, self.epoch, self.sent, len(ids), flags, ids)
        self.sent += len(ids)
        return segment
