"""Makes settings of entries: fills in what was left out, and reads keys from their variables.

Rules between several fields are in `checking`.
"""

from collections.abc import Mapping
from typing import Any

from meshnet_gateway.config.entries import (
    EmbeddingModelEntry,
    EndpointEntry,
    Entry,
    ModelEntry,
    PeerEntry,
    SettingsEntry,
    Sharing,
)
from meshnet_gateway.config.faults import Faults
from meshnet_gateway.config.settings import (
    DEFAULT_MAX_CONCURRENCY,
    DEFAULT_MESH,
    Endpoint,
    FoundEndpoints,
    Model,
    Peer,
    Secret,
    Settings,
    host_of,
)

SHARING_FIELDS = (
    "gpu_group",
    "max_concurrent_requests",
    "parallel_instances",
    "max_parallel_calls",
)
PLAIN_FIELDS = (
    "hold_seconds",
    "ack_after_ms",
    "keep_alive_seconds",
    "connect_retries",
    "connect_backoff_ms",
    "max_waiting",
    "max_total_body_bytes",
)
"""Fields of the settings that are what the Operator gave."""
RENAMED: Mapping[str, str] = {
    "gpu_concurrency_budgets": "budgets",
    "gpu_reserved_roles": "reserved_roles",
    "model_max_concurrency": "max_concurrency",
}
"""What fields of entries are called in the settings, where it is not the same."""


class Resolver:
    """Resolves entries; keys may be in `environment`, and a variable that is not is a fault."""

    def __init__(self, environment: Mapping[str, str], faults: Faults) -> None:
        self._environment = environment
        self._faults = faults

    def settings(self, entry: SettingsEntry, fresh_mesh_id: str) -> Settings:
        """Resolve all of it; `fresh_mesh_id` is the Mesh's where the Operator gave it none."""
        models = tuple(
            self._model(model, entry) for model in (*entry.chat_models, *entry.embedding_models)
        )
        return Settings(
            mesh_id=entry.mesh_id or fresh_mesh_id,
            meshes=_meshes(entry, models),
            models=models,
            peers=tuple(map(self._peer, entry.federation_peers)),
            **_given(entry, *RENAMED, *PLAIN_FIELDS),
        )

    def _model(self, entry: ModelEntry, settings: SettingsEntry) -> Model:
        embeds = isinstance(entry, EmbeddingModelEntry)
        fallback = entry.fallback if isinstance(entry, EmbeddingModelEntry) else None
        endpoints = tuple(self._endpoint(one, entry) for one in endpoint_entries(entry))
        return Model(
            id=entry.id,
            kind="embedding" if embeds else "chat",
            role=entry.role or ("embedding" if embeds else "default"),
            endpoints=endpoints,
            fallback=self._endpoint(fallback, fallback) if fallback else None,
            ceiling=_ceiling(entry, settings, sum(endpoint.floor for endpoint in endpoints)),
            dimensions=_dimensions(entry),
            found=FoundEndpoints(**_given(entry, *SHARING_FIELDS)),
            **_given(settings, "hold_seconds") | _given(entry, "hold_seconds", "balance"),
        )

    def _endpoint(self, entry: EndpointEntry, above: Sharing) -> Endpoint:
        base_url = entry.base_url.without_version
        shared = _given(above, *SHARING_FIELDS) | _given(entry, *SHARING_FIELDS)
        return Endpoint(
            base_url=base_url,
            api_key=self._key(entry) or self._key(above),
            **{"gpu_group": host_of(base_url)} | shared | _given(entry, "weight", "metrics_url"),
        )

    def _peer(self, entry: PeerEntry) -> Peer:
        return Peer(
            id=entry.id,
            base_url=entry.base_url.without_version,
            api_key=self._key(entry),
            **_given(entry, "models", "priority", "weight"),
        )

    def _key(self, entry: Sharing | PeerEntry) -> Secret | None:
        if entry.api_key is not None and entry.api_key_env is not None:
            self._faults.add(entry.place.of("api_key"), "give it or api_key_env, not both")
        field = "api_key" if entry.api_key_env is None else "api_key_env"
        key = entry.api_key
        if entry.api_key_env is not None:
            key = self._environment.get(entry.api_key_env, "").strip()
        if key is None:
            return None
        if not key:
            self._faults.add(entry.place.of(field), f"there is no variable {entry.api_key_env}")
        elif not (key.isascii() and key.isprintable()):
            self._faults.add(entry.place.of(field), "this key holds what no header may")
        return Secret(key)


def _given(entry: Entry, *fields: str) -> dict[str, Any]:
    """Return what the Operator gave of these fields; the others have the settings' defaults."""
    values = {field: getattr(entry, field) for field in fields}
    return {RENAMED.get(name, name): value for name, value in values.items() if value is not None}


def endpoint_entries(entry: ModelEntry) -> tuple[EndpointEntry, ...]:
    """Return a model's Endpoints as they were written, as a list or as the short form."""
    if entry.base_url is None:
        return entry.endpoints or ()
    short = EndpointEntry(
        place=entry.place,
        base_url=entry.base_url,
        weight=entry.weight,
        metrics_url=entry.metrics_url,
    )
    return (short, *(entry.endpoints or ()))


def _meshes(entry: SettingsEntry, models: tuple[Model, ...]) -> tuple[str, ...]:
    """Without a word about meshes there is one, unless models have Endpoints of their own."""
    if entry.meshes is not None:
        return tuple(dict.fromkeys(mesh.without_version for mesh in entry.meshes))
    return () if any(model.endpoints for model in models) else (DEFAULT_MESH,)


def _dimensions(entry: ModelEntry) -> int | None:
    if not isinstance(entry, EmbeddingModelEntry):
        return None
    return entry.dimensions or (entry.fallback.dimensions if entry.fallback else None)


def _ceiling(entry: ModelEntry, settings: SettingsEntry, floor: int) -> int:
    """Take the narrower of the model's own and everybody's; without both no Floor is too high."""
    ceilings = [c for c in (entry.ceiling, settings.model_max_concurrency) if c is not None]
    return min(ceilings, default=max(DEFAULT_MAX_CONCURRENCY, floor))
