"""What an Operator may write, field by field; None stands for what was left out.

Each type says what its fields may be; rules between several fields are in `resolving`.
"""

from typing import Annotated, Any
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from meshnet_gateway.config.faults import Place
from meshnet_gateway.config.settings import Balance

LONGEST_BODY_BYTES = 4 << 20
"""What one request may send; less would never let the longest through."""

_Name = Annotated[str, Meta(min_length=1, max_length=256)]
_Count = Annotated[int, Meta(ge=1, le=1_000_000)]
_Weight = Annotated[float, Meta(gt=0, le=1_000_000)]
_Seconds = Annotated[float, Meta(ge=0, le=86_400)]
_MeshId = Annotated[str, Meta(pattern=r"^[A-Za-z0-9._-]{1,64}\Z")]
"""It travels in a header, with commas between."""


class Url(str):
    """An http or https URL without a slash at its end."""

    __slots__ = ()

    @classmethod
    def parse(cls, text: object) -> "Url":
        """Read one; raises ValueError or TypeError that says what is wrong with it."""
        if not isinstance(text, str):
            raise TypeError("expected a URL such as http://127.0.0.1:8000")
        parts = urlsplit(text.strip())
        if "@" in parts.netloc or parts.query or parts.fragment:
            raise ValueError("a base URL has no user, no query and no fragment")
        if parts.scheme not in {"http", "https"} or not parts.hostname or parts.port == 0:
            raise ValueError(f"{text!r} is no URL; write it like http://127.0.0.1:8000")
        _check_host(parts.hostname)
        # One server, one spelling: what is counted goes by this text.
        origin = parts._replace(scheme=parts.scheme.lower(), netloc=parts.netloc.lower())
        return cls(origin.geturl().rstrip("/"))

    @property
    def without_version(self) -> str:
        """What `/v1/...` is put behind; clients write the `/v1` into their base URLs."""
        return self.removesuffix("/v1").rstrip("/")


def _check_host(host: str) -> None:
    """Raise ValueError for a name that no lookup takes."""
    try:
        host.encode("idna")
    except UnicodeError as error:
        raise ValueError(f"{host!r} is no name of a host") from error


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """A table of fields that knows where it stands."""

    place: Place


class Sharing(Entry, frozen=True, kw_only=True):
    """How much an Endpoint takes, and whom it shares its GPUs with."""

    gpu_group: _Name | None = None
    max_concurrent_requests: _Count | None = None
    parallel_instances: _Count | None = None
    max_parallel_calls: _Count | None = None
    api_key: _Name | None = None
    api_key_env: _Name | None = None


class EndpointEntry(Sharing, frozen=True, kw_only=True):
    """One base URL; what it leaves out of Sharing is its model's."""

    base_url: Url
    weight: _Weight | None = None
    metrics_url: Url | None = None


class FallbackEntry(EndpointEntry, frozen=True, kw_only=True):
    """An embedding model's second Endpoint, which takes nothing over from its model."""

    id: _Name | None = None
    role: _Name | None = None
    dimensions: _Count | None = None
    fallback: Any = None
    """Passed over: there is one level."""


class ModelEntry(Sharing, frozen=True, kw_only=True):
    """A model; `base_url` is short for a list of one Endpoint."""

    id: _Name
    role: _Name | None = None
    base_url: Url | None = None
    weight: _Weight | None = None
    metrics_url: Url | None = None
    endpoints: tuple[EndpointEntry, ...] | None = None
    ceiling: _Count | None = None
    balance: Balance | None = None
    hold_seconds: _Seconds | None = None


class EmbeddingModelEntry(ModelEntry, frozen=True, kw_only=True):
    """A model that makes embeddings."""

    fallback: FallbackEntry | None = None
    dimensions: _Count | None = None


class PeerEntry(Entry, frozen=True, kw_only=True):
    """Another Mesh's Gateway."""

    id: _MeshId
    base_url: Url
    models: Annotated[tuple[_Name, ...], Meta(min_length=1)] | None = None
    priority: Annotated[int, Meta(ge=0, le=1_000_000)] | None = None
    weight: _Weight | None = None
    api_key: _Name | None = None
    api_key_env: _Name | None = None


class SettingsEntry(Entry, frozen=True, kw_only=True):
    """All of it, from whichever source."""

    mesh_id: _MeshId | None = None
    meshes: tuple[Url, ...] | None = None
    chat_models: tuple[ModelEntry, ...] = ()
    embedding_models: tuple[EmbeddingModelEntry, ...] = ()
    federation_peers: tuple[PeerEntry, ...] = ()
    gpu_concurrency_budgets: dict[_Name, _Count] | None = None
    gpu_reserved_roles: frozenset[_Name] | None = None
    model_max_concurrency: _Count | None = None
    connect_retries: Annotated[int, Meta(ge=0, le=1000)] | None = None
    connect_backoff_ms: Annotated[int, Meta(ge=1, le=60_000)] | None = None
    hold_seconds: _Seconds | None = None
    ack_after_ms: Annotated[int, Meta(ge=0, le=3_600_000)] | None = None
    keep_alive_seconds: Annotated[float, Meta(ge=0.1, le=3600)] | None = None
    max_waiting: Annotated[int, Meta(ge=0, le=1_000_000)] | None = None
    max_total_body_bytes: Annotated[int, Meta(ge=LONGEST_BODY_BYTES, le=1 << 50)] | None = None
