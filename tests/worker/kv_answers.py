"""The answers of a simulated Mesh, and the Routes that they take."""

from dataclasses import dataclass, field
from typing import NamedTuple

from meshnet_common.protocol.bodies import Epoch
from meshnet_common.protocol.messages import RouteHop
from meshnet_common.protocol.tickets import RouteTicket
from meshnet_worker.generation import Generation
from tests.common.builders import hop
from tests.worker.kv_worker import CAPACITY

ROUTES = (
    (hop("w0", 0, 2), hop("w1", 2, 3), hop("w2", 3, 4)),
    (hop("w1", 0, 1), hop("w2", 1, 3), hop("w0", 3, 4)),
    (hop("w2", 0, 2), hop("w0", 2, 3), hop("w1", 3, 4)),
    (hop("w0", 0, 1), hop("w2", 1, 2), hop("w1", 2, 4)),
)


class Link(NamedTuple):
    """Bodies between two Workers arrive in order within a class."""

    sender: str
    receiver: str
    is_bulk: bool


@dataclass
class Answer:
    """One Session as its Head Worker and its client see it."""

    ticket: RouteTicket
    generation: Generation
    opening: Epoch | None = None
    phase: str = "waiting"
    fault: str | None = None
    is_cancelled: bool = False
    is_hurt: bool = False
    """Whether its Route has failed since its last token."""
    left: dict[str, tuple[RouteHop, Epoch]] = field(default_factory=dict)
    """Hops of earlier Routes, which may still hold something for it."""

    @property
    def is_over(self) -> bool:
        return self.is_cancelled or self.fault is not None or self.generation.finished

    @property
    def expected(self) -> list[int]:
        prompt = len(self.generation.prompt_ids)
        wanted = min(self.generation.max_new_tokens, CAPACITY + 1 - prompt)
        return list(range(prompt, prompt + wanted))
