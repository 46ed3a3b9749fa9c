"""Which Endpoints serve a model: those that the Operator named, else the meshes' Head Workers.

What is served is changed in place, so that requests on their way and in line keep what they hold
when settings are read anew.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from meshnet_common.openai.errors import model_not_found
from meshnet_gateway.config.settings import (
    FALLBACK_CAPACITY,
    Endpoint,
    Model,
    Settings,
    floors_by_group,
)
from meshnet_gateway.limits.adaptive import AdaptiveLimit
from meshnet_gateway.limits.breaker import BreakerPolicy, CircuitBreaker
from meshnet_gateway.limits.budgets import GroupBudget
from meshnet_gateway.meshes import Meshes
from meshnet_gateway.serving.endpoint_state import EndpointState
from meshnet_gateway.serving.served_model import ServedModel

MOST_FOUND_MODELS = 1024
MOST_RESTS = 4
"""A broken Endpoint is probed after the rest between two tries, and then ever more rarely, up to so
many rests: who is held for it need not wait much longer than that when it is back."""

# The failover of an embedder has a breaker of its own, and it alone decides.
NEVER_OPENS = BreakerPolicy(failures_in_a_row=1 << 62, least_calls=1 << 62)


@dataclass(slots=True)
class Registry:
    """All models of this Gateway, by name."""

    settings: Settings
    meshes: Meshes
    draw: Callable[[], float]
    groups: dict[str, GroupBudget] = field(default_factory=dict)
    _served: dict[str, ServedModel] = field(default_factory=dict)
    _fallbacks: dict[str, ServedModel] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.apply(self.settings, self.meshes)

    def __iter__(self) -> Iterator[ServedModel]:
        yield from self._served.values()
        yield from self._fallbacks.values()

    @property
    def configured(self) -> tuple[ServedModel, ...]:
        """The models with Endpoints that the Operator named."""
        return tuple(self._served[model.id] for model in self.settings.models if model.endpoints)

    def sides(self, name: str) -> tuple[ServedModel, ServedModel]:
        """Return an embedding model and its fallback, which it must have."""
        return self._served[name], self._fallbacks[name]

    async def find(self, name: str, headers: Mapping[str, str], *, anew: bool) -> ServedModel:
        """Find who serves a model; `headers` carry the caller's key, `anew` trusts no memory.

        Raises the ApiError that says why nobody here does.
        """
        model = self.settings.model(name) or self.settings.unnamed_model(name)
        if model.endpoints:
            return self._served[name]
        if not self.settings.meshes:
            raise model_not_found(name)
        # Who waits for a Head Worker that is gone learns that from it, and then looks here again.
        heads = await self.meshes.heads_of(name, headers, anew=anew)
        served = self._served.get(name)
        if served is None:
            self._make_room()
            served = self._served[name] = ServedModel(model, name)
        self._serve(served, model, [model.found.at(head) for head in heads])
        return served

    def apply(self, settings: Settings, meshes: Meshes) -> None:
        """Go by these settings from now on; who is served already loses nothing."""
        for group in self.groups.values():
            group.set_budget(None)
        before = {model.id for model in self.settings.models if model.endpoints}
        named = {model.id: model for model in settings.models if model.endpoints}
        self.settings, self.meshes = settings, meshes
        for name in before - set(named):
            self._forget(name)
        for name, model in named.items():
            served = self._served.setdefault(name, ServedModel(model, name))
            self._serve(served, model, model.endpoints)
        self._apply_fallbacks(named)
        for name in settings.budgets:
            self._group(name)
        for name, group in self.groups.items():
            group.set_budget(settings.budgets.get(name))

    def _apply_fallbacks(self, named: Mapping[str, Model]) -> None:
        for name, served in list(self._fallbacks.items()):
            if name not in named or named[name].fallback is None:
                self._serve(served, served.model, ())
                del self._fallbacks[name]
        for name, model in named.items():
            if model.fallback is not None:
                key = f"{FALLBACK_CAPACITY}:{name}" if self._fallbacks else FALLBACK_CAPACITY
                served = self._fallbacks.setdefault(name, ServedModel(model, key))
                self._serve(served, model, (model.fallback,))

    def _forget(self, name: str) -> None:
        if served := self._served.pop(name, None):
            self._serve(served, served.model, ())

    def _make_room(self) -> None:
        found = set(self._served) - {model.id for model in self.settings.models}
        if len(found) >= MOST_FOUND_MODELS:
            for name in found:
                if not self._served[name].in_flight:
                    self._forget(name)

    def _serve(self, served: ServedModel, model: Model, endpoints: Iterable[Endpoint]) -> None:
        endpoints = tuple(endpoints)
        groups_before = {state.endpoint.gpu_group for state in served}
        # What a Mesh lends is not the Operator's to promise, so nothing is kept free for it.
        floors = {endpoint.gpu_group: 0 for endpoint in endpoints}
        if model.endpoints:
            floors = dict(floors_by_group(endpoints))
        key, reserved = served.capacity_key, self.settings.reserves(served.role)
        for name, floor in floors.items():
            self._group(name).register(key, floor, reserved=reserved)
        for name in groups_before - set(floors):
            self._group(name).withdraw(key)
            self._drop_idle_groups()
        served.model = model
        served.set_endpoints(endpoints, lambda endpoint: self._new_state(served, endpoint))
        for state in served:
            state.limit.set_range(*self._range(model, state.endpoint))
        served.retarget()

    def _drop_idle_groups(self) -> None:
        """Forget what is left of Head Workers' hosts that come and go."""
        for name, group in [*self.groups.items()]:
            if group.budget is None and not group.members:
                del self.groups[name]

    def _new_state(self, served: ServedModel, endpoint: Endpoint) -> EndpointState:
        model, settings = served.model, self.settings
        rest_seconds = settings.connect_backoff_ms / 1000
        policy = BreakerPolicy(
            failures_in_a_row=max(1, settings.connect_retries),
            cool_down_seconds=rest_seconds,
            most_cool_down_seconds=MOST_RESTS * rest_seconds,
        )
        if model.fallback is not None:
            policy = NEVER_OPENS
        return EndpointState(
            served.capacity_key,
            endpoint,
            AdaptiveLimit(*self._range(model, endpoint)),
            self._group(endpoint.gpu_group),
            CircuitBreaker(policy, self.draw),
        )

    def _range(self, model: Model, endpoint: Endpoint) -> tuple[int, int]:
        """Between what the limit of an Endpoint may move."""
        if not model.endpoints and endpoint.floor == 1:
            # A Mesh admits by itself, and says what it has no room for, unless the Operator does.
            return model.ceiling, model.ceiling
        return endpoint.floor, max(endpoint.floor, model.ceiling)

    def _group(self, name: str) -> GroupBudget:
        return self.groups.setdefault(name, GroupBudget(None))
