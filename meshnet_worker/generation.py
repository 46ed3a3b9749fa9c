"""One generation as its Head Worker drives it; pure: events in, segments to send out.

The prompt goes out in Prefill Chunks while credits last, each Decode Step as soon as the token
before it has come back. Positions count prompt and answer from 0. A generation that lost its KV
goes on where it was: prompt and answer so far go out as Prefill Chunks of a higher epoch.
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

RESERVE_POSITIONS = 64
"""The answer's positions are reserved in runs of at least this many, not all at once."""
RESERVE_AHEAD = 32
"""The next run is reserved when fewer than this many positions are left."""
OVERLAPPING_CHUNKS = 8
"""A prompt goes out in at least so many chunks, where they stay large enough to be computed well:
with few of them the Hops wait for each other at either end of the prompt."""
LEAST_CHUNK_TOKENS = 64


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
    block_positions: int = 1
    """Reservations end with a KV Block, for the rest of it would lie idle."""
    capacity: int | None = None
    """Positions of the longest Session that the Route could hold alone, where that is known."""
    has_moved: bool = False
    """Whether it was led around a Worker that could never hold its prompt."""
    credits: int = 0
    sent: int = 0
    """Positions that are sent down the Route."""
    reserved: int = 0
    """Positions for which every Hop has reserved KV or was asked to."""
    chosen: list[int] = field(default_factory=list)
    replayed: int = 0
    """How many of the chosen tokens go out again with the prompt."""

    @property
    def limit(self) -> int:
        """Positions of the whole Session; the last token is never fed back."""
        wanted = len(self.prompt_ids) + self.max_new_tokens - 1
        return wanted if self.capacity is None else min(wanted, self.capacity)

    @property
    def fits(self) -> bool:
        """Whether the Route could hold the prompt at all, as far as is known."""
        return self.capacity is None or len(self.prompt_ids) <= self.capacity

    @property
    def finished(self) -> bool:
        is_full = len(self.prompt_ids) + len(self.chosen) > self.limit
        return self.ended_by_model or is_full

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
        blocks = -(-(used + RESERVE_POSITIONS) // self.block_positions)
        self.reserved = min(self.limit, blocks * self.block_positions)
        return self.reserved

    def prefill_segments(self) -> Iterator[Segment]:
        """The Prefill Chunks that may go out now."""
        ids = (*self.prompt_ids, *self.chosen[: self.replayed])
        overlapping = max(LEAST_CHUNK_TOKENS, -(-len(ids) // OVERLAPPING_CHUNKS))
        chunk_tokens = min(self.chunk_tokens, overlapping)
        while self.credits > 0 and self.sent < len(ids):
            chunk = ids[self.sent : self.sent + chunk_tokens]
            is_last = self.sent + len(chunk) == len(ids)
            wants_token = SEGMENT_SAMPLE if is_last else 0
            yield self._segment(chunk, SEGMENT_PREFILL | wants_token)
            self.credits -= 1

    def on_progress(self, progress: ProgressBody) -> Iterator[Segment]:
        """A chunk has passed the Tail Worker: its credit comes back."""
        if progress.epoch == self.epoch:
            self.credits += 1
        return self.prefill_segments()

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

    def restart(self, epoch: Epoch) -> None:
        """Go on without any KV: what was sent and reserved is gone, what was chosen stays."""
        assert epoch > self.epoch
        self.epoch = epoch
        self.credits = self.sent = self.reserved = 0
        self.replayed = len(self.chosen)

    def _segment(self, ids: tuple[int, ...], flags: int) -> Segment:
        segment = Segment(self.session_id, self.epoch, self.sent, len(ids), flags, ids)
        self.sent += len(ids)
        return segment
