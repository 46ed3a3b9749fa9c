"""What a Gateway is told, in the form in which it works by it.

How an Operator writes it is in `entries`; nothing here is left to be looked up or filled in, save
that a Settings that was made by hand has the defaults of a lone Mesh.
"""

from collections.abc import Iterable, Mapping
from typing import Literal
from urllib.parse import urlsplit

import msgspec

DEFAULT_MESH = "http://127.0.0.1:8080"
DEFAULT_MAX_CONCURRENCY = 200
ANY_MODEL = "*"
FALLBACK_CAPACITY = "embedding:fallback"
RESERVED_ROLES = frozenset({"chat", "generator", "default", "lite", "super"})

Kind = Literal["chat", "embedding"]
Balance = Literal["least", "round_robin", "prefix"]


class Secret:
    """A key that is sent and never shown: no encoder knows this type."""

    __slots__ = ("value",)

    def __init__(self, value: str) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other.value == self.value

    def __hash__(self) -> int:
        return hash(self.value)

    def __repr__(self) -> str:
        return "(hidden)"

    @property
    def bearer(self) -> str:
        """What an `Authorization` header says that sends it."""
        return f"Bearer {self.value}"


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """One base URL that serves a model, without the `/v1` and without a slash at its end."""

    base_url: str
    gpu_group: str
    max_concurrent_requests: int | None = None
    api_key: Secret | None = None
    parallel_instances: int = 1
    max_parallel_calls: int = 1
    weight: float = 1.0
    metrics_url: str | None = None

    @property
    def floor(self) -> int:
        """How many requests it takes at once, whatever the load elsewhere."""
        return self.parallel_instances * self.max_parallel_calls


class FoundEndpoints(msgspec.Struct, frozen=True, kw_only=True):
    """What holds for each of a model's Head Workers, which the meshes tell."""

    gpu_group: str | None = None
    max_concurrent_requests: int | None = None
    parallel_instances: int = 1
    max_parallel_calls: int = 1

    def at(self, base_url: str) -> Endpoint:
        """Make the Endpoint of a Head Worker; without a GPU Group its own host is one."""
        return Endpoint(
            base_url=base_url,
            gpu_group=self.gpu_group or host_of(base_url),
            max_concurrent_requests=self.max_concurrent_requests,
            parallel_instances=self.parallel_instances,
            max_parallel_calls=self.max_parallel_calls,
        )


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """A model that the Operator named; one without Endpoints is served by a Mesh's Head Workers."""

    id: str
    kind: Kind = "chat"
    role: str = "default"
    endpoints: tuple[Endpoint, ...] = ()
    fallback: Endpoint | None = None
    ceiling: int = DEFAULT_MAX_CONCURRENCY
    balance: Balance = "least"
    hold_seconds: float = 60.0
    dimensions: int | None = None
    found: FoundEndpoints = FoundEndpoints()

    @property
    def all_endpoints(self) -> tuple[Endpoint, ...]:
        """Its Endpoints, the fallback last."""
        return self.endpoints if self.fallback is None else (*self.endpoints, self.fallback)

    @property
    def floor(self) -> int:
        return sum(endpoint.floor for endpoint in self.endpoints)

    @property
    def group_floors(self) -> Mapping[str, int]:
        """Its Floor in each GPU Group of its Endpoints; the fallback's is not among them."""
        return floors_by_group(self.endpoints)


class Peer(msgspec.Struct, frozen=True, kw_only=True):
    """Another Mesh's Gateway; `id` is what that calls its own Mesh."""

    id: str
    base_url: str
    models: tuple[str, ...] = (ANY_MODEL,)
    priority: int = 0
    weight: float = 1.0
    api_key: Secret | None = None

    def lists(self, model: str) -> bool:
        return model in self.models or ANY_MODEL in self.models


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """All of it; `meshes` are base URLs of Trackers, `budgets` is by GPU Group."""

    mesh_id: str
    meshes: tuple[str, ...] = (DEFAULT_MESH,)
    models: tuple[Model, ...] = ()
    peers: tuple[Peer, ...] = ()
    budgets: Mapping[str, int] = {}
    reserved_roles: frozenset[str] = RESERVED_ROLES
    max_concurrency: int = DEFAULT_MAX_CONCURRENCY
    """The ceiling of a model that is not in `models`."""
    hold_seconds: float = 60.0
    """How long a request for such a model is held."""
    ack_after_ms: int = 1000
    keep_alive_seconds: float = 10.0
    connect_retries: int = 8
    connect_backoff_ms: int = 500
    max_waiting: int = 1000
    """Requests that wait at once, over all models; one more is refused."""
    max_total_body_bytes: int = 512 << 20
    """Bodies of all requests that are here at once, together; what would be more is refused."""

    def model(self, model_id: str) -> Model | None:
        return next((model for model in self.models if model.id == model_id), None)

    def unnamed_model(self, model_id: str) -> Model:
        """Return what holds for a model that a Mesh serves and `models` does not name."""
        return Model(id=model_id, ceiling=self.max_concurrency, hold_seconds=self.hold_seconds)

    def reserves(self, role: str) -> bool:
        """Tell whether the Floor of models with this role is kept free for them."""
        return role in self.reserved_roles


def host_of(base_url: str) -> str:
    """Return the GPU Group of an Endpoint that names none."""
    return urlsplit(base_url).hostname or ""


def floors_by_group(endpoints: Iterable[Endpoint]) -> Mapping[str, int]:
    """Add up the Floors of these Endpoints within each GPU Group."""
    floors: dict[str, int] = {}
    for endpoint in endpoints:
        floors[endpoint.gpu_group] = floors.get(endpoint.gpu_group, 0) + endpoint.floor
    return floors
