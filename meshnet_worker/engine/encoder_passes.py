"""How much an encoder takes into one pass, by how long its passes were; pure.

Everybody else's next token waits for a pass to end, and no two devices are equally quick. So passes
begin small, double while they are quick, and shrink at once when one was slow.
"""

from collections import deque
from collections.abc import Sequence

PASS_SECONDS = 0.1
LEAST_TOKENS, MOST_TOKENS = 128, 2048
"""Of one pass, filled up to the longest of its texts; a smaller one is mostly its own overhead."""


class PassSize:
    """How many tokens the next pass of one encoder may have."""

    def __init__(self) -> None:
        self.tokens = LEAST_TOKENS

    def ran(self, tokens: int, seconds: float) -> None:
        """Learn from a pass."""
        # No clock is so fine that nothing takes no time.
        fitting = int(tokens * PASS_SECONDS / max(seconds, 1e-6))
        if seconds > PASS_SECONDS:
            self.tokens = max(LEAST_TOKENS, min(fitting, self.tokens))
        else:
            # A pass of few tokens tells too little to shrink.
            self.tokens = min(MOST_TOKENS, max(self.tokens, min(fitting, 2 * self.tokens)))


def shortest_first(lengths: Sequence[int]) -> deque[int]:
    """Return the places of texts of these lengths, as passes should take them."""
    return deque(sorted(range(len(lengths)), key=lambda place: (lengths[place], place)))


def take_pass(waiting: deque[int], lengths: Sequence[int], most_tokens: int) -> list[int]:
    """Take the next texts out, at least one: it cannot be cut."""
    taken = [waiting.popleft()]
    while waiting and (len(taken) + 1) * lengths[waiting[0]] <= most_tokens:
        taken.append(waiting.popleft())
    return taken
