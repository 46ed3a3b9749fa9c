"""What to do about requests that wait for a GPU Group: give it more at once, or add to it; pure."""

from collections.abc import Iterable
from enum import StrEnum

from meshnet_gateway.limits.budgets import GroupBudget
from meshnet_gateway.serving.endpoint_state import EndpointState

BUSY_SHARE = 0.8
"""Endpoints with more than this share of their keys and values in use have nothing left to give."""
SLOW_GRADIENT = 0.9
"""Answers that take so much longer than usual speak of a knee, and less may be chance."""


class Advice(StrEnum):
    """What an Operator might do."""

    NONE = "none"
    """Nobody waits."""
    SCALE_UP = "scale_up"
    """Its Endpoints are quick and nothing waits inside of them: its budget or a ceiling is low."""
    SCALE_OUT = "scale_out"
    """They are at the knee: another Endpoint is needed."""


def advise(group: GroupBudget, states: Iterable[EndpointState], waiting: int) -> Advice:
    """Advise for one group; `waiting` is how many wait in this Gateway for its models."""
    if not waiting:
        return Advice.NONE
    own = [state for state in states if state.group is group]
    return Advice.SCALE_OUT if any(map(_is_at_the_knee, own)) else Advice.SCALE_UP


def _is_at_the_knee(state: EndpointState) -> bool:
    load = state.load
    is_full = load is not None and (bool(load.waiting) or (load.kv_use or 0.0) > BUSY_SHARE)
    return is_full or state.limit.facts.gradient < SLOW_GRADIENT
