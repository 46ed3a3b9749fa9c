"""One generation as its Head Worker drives it; pure: events in, segments to send out.

The prompt goes out in Prefill Chunks while credits last, each Decode Step as soon as the token
before it has come back. Positions count prompt and answer from 0. A generation whose Route
has failed goes on where it was: what its new Route lacks goes out again, in a higher epoch.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from meshnet_common.protocol.bodies import (
    SEGMENT_FILL,
    SEGMENT_PREFILL,
    SEGMENT_SAMPLE,
    ChosenToken,
    Epoch,
    ProgressBody,
    ReplayBody,
    Segment,
)
from meshnet_worker.refill import Fill, plan_refill

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
    known: int = 0
    """Positions whose token ids go out as Prefill Chunks; the rest are Decode Steps."""
    fills: deque[Fill] = field(default_factory=deque)
    """What single Hops lack: all of it before anything goes down the whole Route."""

    def __post_init__(self) -> None:
        self.known = len(self.prompt_ids) + len(self.chosen)

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
    def is_reopened(self) -> bool:
        """Whether an answer that has begun is being opened on another Route."""
        return bool(self.chosen) and self.sent == 0

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

    def on_opened(self, held: Sequence[int], kept: Sequence[int], credit: int) -> None:
        """Every Hop is open: `held` and `kept` say what each of them still has."""
        self.credits = credit
        self.has_moved = False
        if any(held):
            # A new epoch of its own, so that what goes out again replaces what is held.
            incarnation, rollback = self.epoch
            self.epoch = (incarnation, rollback + 1)
            refill = plan_refill(held, kept, self.known)
            self.fills = deque(refill.fills)
            self.sent = self.fills[0].start if self.fills else refill.start

    def due(self) -> Iterator[Segment | ReplayBody]:
        """What may go out now: fills first, then the Prefill Chunks."""
        while self.credits > 0 and self.sent < self._due_end:
            end = min(self.sent + self._chunk_tokens, self._due_end)
            yield self._fill(self.fills[0], end) if self.fills else self._prefill(end)
            self.credits -= 1

    def on_progress(self, progress: ProgressBody) -> Iterator[Segment | ReplayBody]:
        """A chunk has come to the Hop where it ends: its credit comes back."""
        if progress.epoch == self.epoch and not progress.waits:
            self.credits += 1
            if self.fills and progress.position >= self.fills[0].end:
                # Only now: what follows may take another way and must not overtake it.
                end = self.fills.popleft().end
                self.sent = self.fills[0].start if self.fills else end
        return self.due()

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
        self.known = len(self.prompt_ids) + len(self.chosen)
        self.fills.clear()

    @property
    def _due_end(self) -> int:
        return self.fills[0].end if self.fills else self.known

    @property
    def _chunk_tokens(self) -> int:
        overlapping = -(-self.known // OVERLAPPING_CHUNKS)
        return min(self.chunk_tokens, max(LEAST_CHUNK_TOKENS, overlapping))

    def _ids(self, start: int, end: int) -> tuple[int, ...]:
        before = len(self.prompt_ids)
        chosen = self.chosen[max(0, start - before) : max(0, end - before)]
        return (*self.prompt_ids[start:end], *chosen)

    def _prefill(self, end: int) -> Segment:
        wants_token = SEGMENT_SAMPLE if end == self.known else 0
        return self._segment(self._ids(self.sent, end), SEGMENT_PREFILL | wants_token)

    def _fill(self, fill: Fill, end: int) -> Segment | ReplayBody:
        start, self.sent = self.sent, end
        if fill.is_replay:
            return ReplayBody(
                session_id=self.session_id,
                epoch=self.epoch,
                start=start,
                tokens=end - start,
                last_hop=fill.last_hop,
            )
        flags, ids = SEGMENT_FILL | SEGMENT_PREFILL, self._ids(start, end)
        return Segment(self.session_id, self.epoch, start, end - start, flags, ids, fill.last_hop)

    def _segment(self, ids: tuple[int, ...], flags: int) -> Segment:
        segment = Segment(self.session_id, self.epoch, self.sent, len(ids), flags, ids)
        self.sent += len(ids)
        return segment
