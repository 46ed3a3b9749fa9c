"""Rules between several fields of the settings.

What contradicts itself is refused, never bent: a model's Floor must fit into its ceiling, its
Endpoints' caps and its GPU Groups' budgets, or no Gateway could keep all of them.
"""

from collections.abc import Iterable, Iterator

from meshnet_gateway.config.entries import (
    EmbeddingModelEntry,
    EndpointEntry,
    FallbackEntry,
    ModelEntry,
    SettingsEntry,
)
from meshnet_gateway.config.faults import Faults, Place
from meshnet_gateway.config.resolving import endpoint_entries
from meshnet_gateway.config.settings import FALLBACK_CAPACITY, Endpoint, Model, Settings


def check_settings(entry: SettingsEntry, settings: Settings, faults: Faults) -> None:
    """Add every fault of these settings, which came from that entry."""
    entries = (*entry.chat_models, *entry.embedding_models)
    _check_each_once("id", ((model.place, model.id) for model in entries), faults)
    _check_each_once("id", ((peer.place, peer.id) for peer in entry.federation_peers), faults)
    for peer in entry.federation_peers:
        if peer.id == settings.mesh_id:
            faults.add(peer.place.of("id"), f"{peer.id!r} is this Mesh itself")
    for model_entry, model in zip(entries, settings.models, strict=True):
        _check_endpoints(model_entry, model, settings, faults)
        _check_ceiling(model_entry, model, entry, faults)
        if isinstance(model_entry, EmbeddingModelEntry):
            _check_fallback(model_entry.fallback, model, faults)
    _check_budgets(entry.place.of("gpu_concurrency_budgets"), settings, faults)


def doubts_of(settings: Settings) -> Iterator[str]:
    """Tell what is allowed and may still not be meant."""
    used = {endpoint.gpu_group for model in settings.models for endpoint in model.all_endpoints}
    used |= {model.found.gpu_group for model in settings.models if model.found.gpu_group}
    for group in settings.budgets:
        if group not in used:
            others = ", unless a Head Worker is" if settings.meshes else ""
            yield f"gpu_concurrency_budgets.{group}: no Endpoint here is in this group{others}"


def _check_endpoints(entry: ModelEntry, model: Model, settings: Settings, faults: Faults) -> None:
    if entry.base_url is not None and entry.endpoints:
        faults.add(entry.place.of("endpoints"), "give them or base_url, not both")
    lonely = ("weight", "metrics_url") if entry.base_url is None else ()
    keys = ("api_key", "api_key_env") if not model.endpoints else ()
    for field in (*lonely, *keys):
        if getattr(entry, field) is not None:
            faults.add(entry.place.of(field), "belongs beside the base_url of an Endpoint")
    if not model.endpoints and not settings.meshes:
        faults.add(str(entry.place), "has no Endpoint, and there is no Mesh to serve it")
    written = endpoint_entries(entry)
    urls = ((one.place, one.base_url.without_version) for one in written)
    _check_each_once("base_url", urls, faults)
    for one, endpoint in zip(written, model.endpoints, strict=True):
        _check_cap(one, endpoint, faults)


def _check_cap(entry: EndpointEntry, endpoint: Endpoint, faults: Faults) -> None:
    cap = endpoint.max_concurrent_requests
    if cap is not None and cap < endpoint.floor:
        message = (
            f"{cap} is below the Floor of {endpoint.floor}, which is parallel_instances "
            f"{endpoint.parallel_instances} x max_parallel_calls {endpoint.max_parallel_calls}"
        )
        faults.add(entry.place.of("max_concurrent_requests"), message)


def _check_ceiling(
    entry: ModelEntry, model: Model, settings: SettingsEntry, faults: Faults
) -> None:
    if model.ceiling >= model.floor:
        return
    its_own = entry.ceiling == model.ceiling
    place = entry.place.of("ceiling") if its_own else settings.place.of("model_max_concurrency")
    faults.add(place, f"{model.ceiling} is below the Floor of `{model.id}`, {model.floor}")


def _check_fallback(entry: FallbackEntry | None, model: Model, faults: Faults) -> None:
    fallback = model.fallback
    if entry is None or fallback is None:
        return
    if not model.endpoints:
        faults.add(str(entry.place), "there is no Endpoint that it could stand in for")
    if fallback.base_url in {endpoint.base_url for endpoint in model.endpoints}:
        faults.add(entry.place.of("base_url"), f"{fallback.base_url} is an Endpoint of it already")
    if entry.id not in {None, model.id}:
        message = f"{entry.id!r} is not {model.id!r}; a fallback serves the same model"
        faults.add(entry.place.of("id"), message)
    if entry.dimensions not in {None, model.dimensions}:
        message = f"{entry.dimensions} are not the {model.dimensions} of `{model.id}`"
        faults.add(entry.place.of("dimensions"), message)
    _check_cap(entry, fallback, faults)


def _check_budgets(place: str, settings: Settings, faults: Faults) -> None:
    for group, budget in settings.budgets.items():
        floors = dict(_floors(settings.models, group))
        needed = sum(floors.values())
        if needed > budget:
            parts = ", ".join(f"{name} {floor}" for name, floor in floors.items())
            message = f"{budget} is below the Floors in this group, {needed} in all ({parts})"
            faults.add(f"{place}.{group}", message)


def _floors(models: Iterable[Model], group: str) -> Iterable[tuple[str, int]]:
    """What each capacity is promised within a GPU Group."""
    for model in models:
        if group in model.group_floors:
            yield model.id, model.group_floors[group]
        if model.fallback is not None and model.fallback.gpu_group == group:
            yield f"{FALLBACK_CAPACITY} of {model.id}", model.fallback.floor


def _check_each_once(field: str, items: Iterable[tuple[Place, str]], faults: Faults) -> None:
    first: dict[str, Place] = {}
    for place, value in items:
        if value in first:
            faults.add(place.of(field), f"{value!r} is that of {first[value]} already")
        else:
            first[value] = place
