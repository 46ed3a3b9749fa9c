"""One Endpoint as it stands: what is in flight there, what it can take, how it has fared; pure."""

from enum import Enum

from meshnet_gateway.config.settings import Endpoint
from meshnet_gateway.limits.adaptive import AdaptiveLimit
from meshnet_gateway.limits.breaker import Attempt, CircuitBreaker, Closed
from meshnet_gateway.limits.budgets import GroupBudget
from meshnet_gateway.limits.spread import Candidate
from meshnet_gateway.limits.upstream_metrics import UpstreamLoad
from meshnet_gateway.serving.pulse import Pulse

COOL_SECONDS = 5.0
"""One that could not be reached comes last for this long."""


class Outcome(Enum):
    """What a request has told of its Endpoint."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    UNSAID = "unsaid"


class Listing(Enum):
    """What an Endpoint says of the model when it is asked what it serves."""

    UNKNOWN = "unknown"
    """It lists no models, or never listed this one; some go by other names of their own."""
    LISTED = "listed"
    SWAPPED = "swapped"
    """It listed the model once, and no longer does."""
    UNREACHABLE = "unreachable"


class EndpointState:
    """The state of one Endpoint for one member of its GPU Group, a model or a fallback."""

    def __init__(
        self,
        member: str,
        endpoint: Endpoint,
        limit: AdaptiveLimit,
        group: GroupBudget,
        breaker: CircuitBreaker,
    ) -> None:
        self.member = member
        self.endpoint = endpoint
        self.limit = limit
        self.group = group
        self.breaker = breaker
        self.in_flight = 0
        self.requests = 0
        """All that ever began there."""
        self.pulse = Pulse()
        self.listing = Listing.UNKNOWN
        self.load: UpstreamLoad | None = None
        """What it has said of its load last, if it says anything."""
        self.in_doubt = False
        """Whether something failed there since it was looked at: it may serve another model now."""
        self.looked_at = float("-inf")
        self._was_listed = False
        self._last_turn = 0
        self._cooling_until = 0.0

    @property
    def capacity(self) -> int:
        """How many requests it takes at once now."""
        cap = self.endpoint.max_concurrent_requests
        return self.limit.limit if cap is None else min(self.limit.limit, cap)

    @property
    def is_swapped(self) -> bool:
        return self.listing is Listing.SWAPPED

    @property
    def is_closed(self) -> bool:
        """Whether its breaker lets everybody through; if not, who goes there is a probe."""
        return isinstance(self.breaker.state, Closed)

    def is_resident(self, now: float) -> bool:
        """Tell whether it would answer, as far as is known."""
        is_gone = self.listing in {Listing.SWAPPED, Listing.UNREACHABLE} or self.pulse.is_silent
        return not is_gone and self.breaker.admits(now)

    def may_take(self, now: float) -> bool:
        has_room = self.in_flight < self.capacity and self.group.admits(self.member)
        return has_room and not self.is_swapped and self.breaker.admits(now)

    def comes_last(self, now: float) -> bool:
        """Tell whether it could not be reached lately, by a request or by a look."""
        is_away = self.listing is Listing.UNREACHABLE or self.pulse.is_silent
        return is_away or self._cooling_until > now

    def candidate(self) -> Candidate:
        endpoint = self.endpoint
        name, weight = endpoint.base_url, endpoint.weight
        return Candidate(name, self.in_flight, max(1, self.capacity), weight, self._last_turn)

    def lists(self, listed: bool | None) -> None:
        """Take in whether it lists the model; None if it could not be reached."""
        if listed is None:
            self.listing = Listing.UNREACHABLE
        elif listed:
            self.listing, self._was_listed = Listing.LISTED, True
        else:
            self.listing = Listing.SWAPPED if self._was_listed else Listing.UNKNOWN

    def has_no_list(self) -> None:
        """Take in that it is there, and lists nothing that can be read."""
        if self.listing is Listing.UNREACHABLE:
            self.listing = Listing.UNKNOWN

    def begin(self, turn: int, now: float) -> Attempt:
        attempt = self.breaker.begin(now)
        self.group.begin(self.member)
        self.in_flight += 1
        self.requests += 1
        self._last_turn = turn
        return attempt

    def answered(self, attempt: Attempt, now: float) -> None:
        """Note that it has begun to answer, or answered whole."""
        self.breaker.succeeded(attempt, now)
        self.pulse.gave_an_answer()
        self._cooling_until = 0.0

    def end(self, attempt: Attempt, outcome: Outcome, now: float, others: int) -> None:
        """End a request; `others` is how many other Endpoints would still take some."""
        self.in_flight -= 1
        self.group.end(self.member)
        match outcome:
            case Outcome.FAILED:
                self.in_doubt = True
                self.breaker.failed(attempt, now, others)
            case Outcome.UNSAID:
                self.breaker.cancelled(attempt)
            case Outcome.SUCCEEDED:
                pass  # Said when the answer began.

    def unreachable(self, now: float) -> None:
        self._cooling_until = now + COOL_SECONDS
