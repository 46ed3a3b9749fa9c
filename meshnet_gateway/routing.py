"""Decides which Head Worker gets a request and what a client hears when no Mesh has one.

Values in, values out: the counting and the asking are done in `upstreams`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from meshnet_common.openai.errors import ApiError, upstream_failed

COOL_SECONDS = 5.0
"""A Head Worker that could not be reached comes last for this long."""


@dataclass(frozen=True, slots=True)
class HeadLoad:
    """What this Gateway knows of one Head Worker; times are seconds of its own clock."""

    in_flight: int = 0
    last_turn: int = 0
    """Number of the last request that went there, counted over all Head Workers."""
    cooling_until: float = 0.0

    def begun(self, turn: int) -> "HeadLoad":
        return replace(self, in_flight=self.in_flight + 1, last_turn=turn)

    def ended(self) -> "HeadLoad":
        return replace(self, in_flight=self.in_flight - 1)

    def unreachable(self, now: float) -> "HeadLoad":
        return replace(self, cooling_until=now + COOL_SECONDS)


def order_heads(heads: Sequence[str], loads: Mapping[str, HeadLoad], now: float) -> tuple[str, ...]:
    """Sort by least connections; among equals the one whose turn is longest ago comes first."""

    def rank(head: str) -> tuple[bool, int, int]:
        load = loads.get(head, HeadLoad())
        return (load.cooling_until > now, load.in_flight, load.last_turn)

    return tuple(sorted(heads, key=rank))


def join_findings(findings: Sequence[tuple[str, ...] | ApiError]) -> tuple[str, ...]:
    """Join what all meshes said of one model; raises the most telling refusal if none has it.

    A Mesh that knows the model but lacks Layers (503) tells more than one that does not know it
    (404), and that more than one that cannot be reached.
    """
    heads = dict.fromkeys(
        head for found in findings if not isinstance(found, ApiError) for head in found
    )
    if heads:
        return tuple(heads)
    refusals = [found for found in findings if isinstance(found, ApiError)]
    raise min(refusals, key=_telling, default=upstream_failed("There is no Mesh to ask."))


def _telling(refusal: ApiError) -> int:
    order = (503, 404)
    return order.index(refusal.status) if refusal.status in order else len(order)
