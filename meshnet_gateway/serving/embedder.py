"""An embedding model with a fallback: which of its two sides answers now."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import structlog

from meshnet_gateway.limits.breaker import Attempt
from meshnet_gateway.limits.failover import Choice, EmbedderFailover, Side, Turn
from meshnet_gateway.serving.endpoint_state import Outcome
from meshnet_gateway.serving.served_model import ServedModel

_logger = structlog.get_logger()


@dataclass(slots=True)
class Trial:
    """One side's chance to answer; whoever takes it says how it went."""

    side: Side
    outcome: Outcome = Outcome.UNSAID


class Embedder:
    """A model with a fallback, and which of its sides answers."""

    def __init__(self, dimensions: int | None, draw: Callable[[], float]) -> None:
        self.failover = EmbedderFailover(dimensions, draw)

    @contextmanager
    def trial(self, model: str, now: Callable[[], float], *, spared: bool) -> Iterator[Trial]:
        """Choose a side; with `spared` it is not the primary."""
        fallback = Choice(Side.FALLBACK, Attempt(0))
        choice = fallback if spared else self.failover.choose(now())
        trial = Trial(choice.side)
        try:
            yield trial
        finally:
            match trial.outcome:
                case Outcome.SUCCEEDED:
                    _tell(self.failover.succeeded(choice, now()), model)
                case Outcome.FAILED:
                    _tell(self.failover.failed(choice, now()), model)
                case Outcome.UNSAID:
                    self.failover.cancelled(choice)


@dataclass(frozen=True, slots=True)
class Sides:
    """The two sides of an embedding model."""

    embedder: Embedder
    primary: ServedModel
    fallback: ServedModel


def _tell(turn: Turn, model: str) -> None:
    match turn:
        case Turn.FAILED_OVER:
            _logger.warning("embedder failed over to its fallback", model=model)
        case Turn.RECOVERED:
            _logger.info("embedder is back", model=model)
        case Turn.NONE:
            pass
