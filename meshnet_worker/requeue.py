"""What becomes of a generation whose Route has failed it; pure.

It is mended around who is at fault, it is closed and waits for KV, or it ends.
"""

from meshnet_common.protocol.bodies import ErrorBody
from meshnet_common.protocol.tickets import RouteTicket
from meshnet_worker.generation import Generation
from meshnet_worker.waiting_room import WaitingRoom

BAD_TICKET = "bad_ticket"
KV_CAPACITY = "kv_capacity"
DRAINING = "draining"
MENDABLE = frozenset(
    {
        "bad_segment",
        DRAINING,
        "engine_failed",
        "engine_lost",
        "lease_expired",
        "not_kept",
        "not_serving",
        "peer_lost",
        "peer_stalled",
        "silent",
    }
)
"""Faults of one Hop: another one, or the same once more, may do its work."""

_GOES_ON = frozenset({"kv_exhausted", "kv_preempted"})
"""Some patience, or another Route, is all that is missing."""


def goes_on(
    fault: ErrorBody, ticket: RouteTicket, generation: Generation, waiting: WaitingRoom, now: float
) -> bool:
    """Whether the Session is opened again, once it is closed on every Hop.

    One that got no KV or gave its own up waits for its turn. One that could never fit ends where
    the Route's memory ends; it goes on, at once, if only its reservation was ahead of its need, and
    once if another Route may have room for its prompt, or for an answer that its first one held.
    """
    if fault.code in _GOES_ON:
        waiting.refused(ticket, now)
        return True
    if fault.code == KV_CAPACITY and fault.kv is not None:
        known, capacity = generation.capacity, fault.kv.capacity
        is_too_small = capacity < len(generation.prompt_ids) and not generation.chosen
        if (is_too_small or generation.is_reopened) and not generation.has_moved:
            generation.has_moved = True
            return True
        generation.capacity = capacity if known is None else min(known, capacity)
        return generation.fits or bool(generation.chosen)
    return False
