"""Tells what settings came to and where each value came from, for `meshnet-gateway check-config`.

Lines are named as an Operator would write them; keys are never shown.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from meshnet_gateway.config.entries import EmbeddingModelEntry, Entry, ModelEntry, SettingsEntry
from meshnet_gateway.config.resolving import PLAIN_FIELDS, RENAMED, SHARING_FIELDS, endpoint_entries
from meshnet_gateway.config.settings import Model, Secret, Settings

DEFAULT = "default"

SETTINGS_FIELDS = ("mesh_id", "meshes", *RENAMED, *PLAIN_FIELDS)
MODEL_FIELDS = ("id", "role", "balance", "hold_seconds")
ENDPOINT_FIELDS = ("base_url", *SHARING_FIELDS, "weight", "metrics_url", "api_key")
PEER_FIELDS = ("id", "base_url", "models", "priority", "weight", "api_key")


class Line(msgspec.Struct, frozen=True):
    """One value as JSON; `origin` is a file, a variable, a flag, another field or `default`."""

    name: str
    value: str
    origin: str


def show_settings(entry: SettingsEntry, settings: Settings, file: str) -> Iterator[Line]:
    """Show every value; `file` is where all is from that does not tell another place."""

    def source(name: str) -> str:
        return entry.place.renamed.get(name, file)

    for name in SETTINGS_FIELDS:
        yield from _lines(entry, settings, (name,), source(name))
    models = (*entry.chat_models, *entry.embedding_models)
    for one, model in zip(models, settings.models, strict=True):
        yield from _model_lines(one, model, entry, file)
    for record, peer in zip(entry.federation_peers, settings.peers, strict=True):
        yield from _lines(record, peer, PEER_FIELDS, source("federation_peers"))


def _model_lines(
    entry: ModelEntry, model: Model, above: SettingsEntry, file: str
) -> Iterator[Line]:
    yield from _lines(entry, model, MODEL_FIELDS, file, above)
    yield Line(entry.place.of("ceiling"), _shown(model.ceiling), _from(entry, model, above, file))
    for one, endpoint in zip(endpoint_entries(entry), model.endpoints, strict=True):
        yield from _lines(one, endpoint, ENDPOINT_FIELDS, file, entry)
    if not model.endpoints:
        yield from _lines(entry, model.found, SHARING_FIELDS, file)
    if isinstance(entry, EmbeddingModelEntry):
        yield from _lines(entry, model, ("dimensions",), file, entry.fallback)
        if entry.fallback is not None:
            yield from _lines(entry.fallback, model.fallback, ENDPOINT_FIELDS, file)


def _from(entry: ModelEntry, model: Model, above: SettingsEntry, file: str) -> str:
    """Tell which of two ceilings is the narrower."""
    if entry.ceiling == model.ceiling:
        return file
    is_everybodys = above.model_max_concurrency == model.ceiling
    return above.place.of("model_max_concurrency") if is_everybodys else DEFAULT


def _lines(
    entry: Entry, resolved: object, names: Iterable[str], source: str, above: Entry | None = None
) -> Iterator[Line]:
    """Show fields of an entry as they were resolved, those from `above` included."""
    for name in names:
        origin = DEFAULT
        if _gives(entry, name) or (above and above.place == entry.place and _gives(above, name)):
            origin = source
        elif above is not None and _gives(above, name):
            origin = above.place.of(name)
        value = getattr(resolved, RENAMED.get(name, name))
        is_top = isinstance(entry, SettingsEntry)
        yield Line(name if is_top else entry.place.of(name), _shown(value), origin)


def _gives(entry: Entry, name: str) -> bool:
    names = (name, f"{name}_env")
    return any(getattr(entry, written, None) is not None for written in names)


def _shown(value: Any) -> str:
    if isinstance(value, Secret):
        return repr(value)
    if isinstance(value, frozenset):
        value = sorted(value)
    return msgspec.json.encode(value).decode()
