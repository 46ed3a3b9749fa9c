"""Which waiting segments run in the next Batch; pure, and it holds no tensors.

Decode Steps go first, then Prefill Chunks up to a token budget, so that a long prompt delays
nobody's next token by more than one chunk. Refills of other Workers' losses get a quarter of it, so
that one fault does not become its neighbours'. A Batch runs one run of Layers of one Shard: the one
whose oldest segment has waited longest.
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from meshnet_common.shard_range import ShardRange
from meshnet_worker.engine_port import BATCH_TOKENS

FILL_SHARE = 4
"""One in so many positions of a Batch may be a refill while anything else waits."""


@dataclass(frozen=True, slots=True)
class Lane:
    """Segments that may share a Batch: the same Layers of the same Shard."""

    shard: int
    shard_range: ShardRange

    @property
    def begins_model(self) -> bool:
        return self.shard_range.start == 0


@dataclass(frozen=True, slots=True)
class Waiting:
    """A segment that waits; `arrival` counts up and orders all of them."""

    session: int
    lane: Lane
    tokens: int
    arrival: int
    is_fill: bool = False


def _all(_lane: Lane) -> int:
    return BATCH_TOKENS


class WaitingSegments:
    """The segments that wait, in arrival order per Session."""

    def __init__(self) -> None:
        self._queues: dict[int, deque[Waiting]] = {}
        self._arrivals = 0

    def __len__(self) -> int:
        return sum(len(queue) for queue in self._queues.values())

    def __bool__(self) -> bool:
        return bool(self._queues)

    def add(self, session: int, lane: Lane, tokens: int, *, is_fill: bool = False) -> Waiting:
        waiting = Waiting(session, lane, tokens, self._arrivals, is_fill)
        self._arrivals += 1
        self._queues.setdefault(session, deque()).append(waiting)
        return waiting

    def forget(self, session: int) -> tuple[Waiting, ...]:
        """Take all segments of one Session out."""
        return tuple(self._queues.pop(session, ()))

    def heads(self) -> list[Waiting]:
        """The first segment of each Session, oldest first: the next continues its positions."""
        return sorted((queue[0] for queue in self._queues.values()), key=lambda w: w.arrival)

    def next_batch(
        self, token_budget: int = BATCH_TOKENS, decodes: Callable[[Lane], int] = _all
    ) -> tuple[Waiting, ...]:
        """Take the next Batch out; empty when nothing waits.

        `decodes` bounds the Decode Steps in a Batch of a lane, at least one. A segment larger than
        the whole budget still runs, alone.
        """
        heads = self.heads()
        if not heads:
            return ()
        lane_heads = [w for w in heads if w.lane == heads[0].lane]
        batch = tuple(_within_budget(lane_heads, token_budget, decodes(heads[0].lane)))
        for waiting in batch:
            queue = self._queues[waiting.session]
            queue.popleft()
            if not queue:
                del self._queues[waiting.session]
        return batch


def _within_budget(
    lane_heads: list[Waiting], token_budget: int, decodes_left: int
) -> Iterator[Waiting]:
    # The oldest always runs: else a chunk could wait for ever behind Decode Steps.
    oldest = lane_heads[0]
    left = token_budget - oldest.tokens
    has_others = any(not w.is_fill for w in lane_heads)
    fills_left = token_budget // FILL_SHARE if has_others else token_budget
    fills_left -= oldest.tokens * oldest.is_fill
    decodes = [w for w in lane_heads if w.tokens == 1][: max(1, decodes_left)]
    chunks = [w for w in lane_heads if w.tokens > 1]
    for waiting in (*decodes, *chunks):
        if waiting is oldest:
            yield waiting
        elif waiting.tokens <= (min(left, fills_left) if waiting.is_fill else left):
            left -= waiting.tokens
            fills_left -= waiting.tokens * waiting.is_fill
            yield waiting
