"""A model as this Gateway serves it: its Endpoints, and which gets the next request; pure."""

from collections.abc import Callable, Iterable, Iterator
from typing import assert_never

from meshnet_gateway.config.settings import Endpoint, Model
from meshnet_gateway.limits.spread import Candidate, in_turn, least_loaded, warmest
from meshnet_gateway.serving.endpoint_state import EndpointState

FALLBACK_ROLE = "embedding"

NewState = Callable[[Endpoint], EndpointState]


class ServedModel:
    """One model, under the name by which its requests wait and its GPU Groups know it."""

    def __init__(self, model: Model, capacity_key: str) -> None:
        self.model = model
        self.capacity_key = capacity_key
        self._states: dict[str, EndpointState] = {}

    def __iter__(self) -> Iterator[EndpointState]:
        return iter(self._states.values())

    @property
    def role(self) -> str:
        """The role that its GPU Groups go by; a fallback is an embedder to them."""
        return self.model.role if self.capacity_key == self.model.id else FALLBACK_ROLE

    @property
    def in_flight(self) -> int:
        return sum(state.in_flight for state in self)

    @property
    def capacity(self) -> int:
        return min(self.model.ceiling, sum(state.capacity for state in self))

    @property
    def is_busy(self) -> bool:
        """Whether something must end before a request that waits may begin."""
        return any(state.group.total for state in self)

    @property
    def is_gone(self) -> bool:
        """Whether each of its Endpoints serves something else by now."""
        return all(state.is_swapped for state in self)

    def is_resident(self, now: float) -> bool:
        return self.any_resident(frozenset(), now)

    def may_take(self, now: float) -> bool:
        return self.in_flight < self.model.ceiling and any(state.may_take(now) for state in self)

    def takers(self, now: float, besides: EndpointState) -> int:
        """Count the Endpoints besides this one to which requests may go."""
        return sum(state.breaker.admits(now) for state in self if state is not besides)

    def any_resident(self, besides: frozenset[str], now: float) -> bool:
        """Tell whether one whose base URL is none of these would answer, as far as is known."""
        return any(s.is_resident(now) for s in self if s.endpoint.base_url not in besides)

    def choose(self, key: str, barred: frozenset[str], now: float) -> EndpointState | None:
        """Choose the best Endpoint that may take one more and is not barred."""
        if self.in_flight >= self.model.ceiling:
            return None
        able = [s for s in self if s.may_take(now) and s.endpoint.base_url not in barred]
        cool = [state for state in able if not state.comes_last(now)]
        order = self._order([state.candidate() for state in cool or able], key)
        return next((self._states[candidate.name] for candidate in order), None)

    def set_endpoints(self, endpoints: Iterable[Endpoint], new_state: NewState) -> None:
        """Serve through these; what is known of one that stays is kept, under new figures."""
        before, self._states = self._states, {}
        for endpoint in endpoints:
            state = before.get(endpoint.base_url)
            if state is None or state.endpoint.gpu_group != endpoint.gpu_group:
                # What is in flight in another GPU Group ends there.
                state = new_state(endpoint)
            state.endpoint = endpoint
            self._states[endpoint.base_url] = state

    def retarget(self) -> None:
        """Tell the GPU Groups how much the limits would allow now."""
        targets: dict[int, int] = {}
        for state in self:
            target = targets.get(id(state.group), 0) + state.capacity
            targets[id(state.group)] = target
            state.group.retarget(state.member, min(self.model.ceiling, target))

    def _order(self, candidates: Iterable[Candidate], key: str) -> tuple[Candidate, ...]:
        match self.model.balance:
            case "least":
                return least_loaded(candidates, None)
            case "round_robin":
                return in_turn(candidates)
            case "prefix":
                return warmest(candidates, key)
            case _:
                assert_never(self.model.balance)
