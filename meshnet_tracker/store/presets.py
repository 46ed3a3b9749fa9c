"""Model Presets and the figures of their Variants: into rows and back."""

from collections.abc import Mapping
from typing import Any

import msgspec
from sqlalchemy import delete, insert, select
from sqlalchemy.ext.asyncio import AsyncConnection

from meshnet_common.ids import PresetName
from meshnet_common.presets import ModelPreset, Variant
from meshnet_common.weights.manifest import Manifest
from meshnet_tracker.records import PresetRecord
from meshnet_tracker.store import counters, news
from meshnet_tracker.store.counters import Counter
from meshnet_tracker.store.errors import (
    PresetExistsError,
    PresetInUseError,
    UnknownPresetError,
)
from meshnet_tracker.store.schema import aliases, manifests, presets, variants

_ADVICE = "`meshnet-tracker preset list` shows all."
_PRESET_FIELDS = (
    "name",
    "source",
    "architecture",
    "hidden_size",
    "vocabulary_size",
    "context_tokens",
    "default_quantization",
)
_VARIANT_FIELDS = (
    "quantization",
    "digest",
    "embedding_bytes",
    "head_bytes",
    "kv_bytes_per_token_per_layer",
    "wire_dtype",
    "gguf",
    "gguf_sha256",
)


async def add(connection: AsyncConnection, record: PresetRecord, now: float) -> None:
    """Insert a preset; raises PresetExistsError when one of its public names is taken."""
    taken = public_names(await load_all(connection))
    taken |= set((await connection.execute(select(aliases.c.name))).scalars())
    # Sorted, so that the preset's own name, the shortest, is told first.
    clashes = sorted(public_names((record,)) & taken)
    if clashes:
        advice = "Run `meshnet-tracker preset remove` first, or give another --name."
        raise PresetExistsError(f"{clashes[0]}. {advice}")
    fields = {field: getattr(record.preset, field) for field in _PRESET_FIELDS}
    fields |= {"added_at": now, "canary": record.is_canary}
    await connection.execute(insert(presets).values(**fields))
    if record.preset.manifest is not None:
        content = msgspec.json.encode(record.preset.manifest).decode()
        values = {"preset": record.preset.name, "content": content}
        await connection.execute(insert(manifests).values(**values))
    served = len(record.preset.variants)
    rows = [
        _variant_values(record.preset.name, variant)
        | {"position": position, "served": position < served}
        for position, variant in enumerate((*record.preset.variants, *record.unserved))
    ]
    await connection.execute(insert(variants), rows)
    await counters.advance(connection, Counter.PRESET_VERSION)
    await news.tell(connection)


async def add_variant(connection: AsyncConnection, name: PresetName, variant: Variant) -> None:
    """Serve one more Variant; raises UnknownPresetError, PresetExistsError when it is there."""
    records = await load_all(connection)
    record = next((r for r in records if r.preset.name == name), None)
    if record is None:
        raise UnknownPresetError(f"{name}. {_ADVICE}")
    public_name = record.preset.public_name(variant.quantization)
    if public_name in public_names(records):
        raise PresetExistsError(f"{public_name}. Run `meshnet-tracker preset remove` first.")
    place = len(record.preset.variants) + len(record.unserved)
    values = _variant_values(name, variant) | {"position": place, "served": True}
    await connection.execute(insert(variants).values(**values))
    await counters.advance(connection, Counter.PRESET_VERSION)
    await news.tell(connection)


async def remove(connection: AsyncConnection, name: PresetName) -> None:
    """Delete a preset with its Variants; raises UnknownPresetError, PresetInUseError."""
    for record in await load_all(connection):
        if record.preset.name == name:
            await _check_unaliased(connection, public_names((record,)))
    deleted = await connection.execute(delete(presets).where(presets.c.name == name))
    if not deleted.rowcount:
        raise UnknownPresetError(f"{name}. {_ADVICE}")
    await counters.advance(connection, Counter.PRESET_VERSION)
    await news.tell(connection)


async def _check_unaliased(connection: AsyncConnection, names: set[str]) -> None:
    # A name that stands for itself needs no model behind it.
    query = select(aliases.c.name).where(aliases.c.target.in_(names))
    query = query.where(aliases.c.name != aliases.c.target).order_by(aliases.c.name)
    users = (await connection.execute(query)).scalars().all()
    if users:
        advice = "Cut over with `meshnet-tracker alias set` first, or remove the alias."
        raise PresetInUseError(f"It answers under {', '.join(users)}. {advice}")


async def load_all(connection: AsyncConnection) -> tuple[PresetRecord, ...]:
    """Read every preset, by name, the default Variant first; without their manifests."""
    preset_rows = (await connection.execute(select(presets).order_by(presets.c.name))).mappings()
    order = (variants.c.preset, variants.c.position)
    variant_rows = (await connection.execute(select(variants).order_by(*order))).mappings().all()
    return tuple(
        _record(row, [v for v in variant_rows if v["preset"] == row["name"]]) for row in preset_rows
    )


async def load_manifest(connection: AsyncConnection, name: str) -> Manifest | None:
    """Read what is known of a preset's bytes."""
    query = select(manifests.c.content).where(manifests.c.preset == name)
    content: str | None = (await connection.execute(query)).scalar()
    return None if content is None else msgspec.json.decode(content, type=Manifest)


def public_names(records: tuple[PresetRecord, ...]) -> set[str]:
    """All names that a client could ask for, now or once more Variants are served."""
    return {
        record.preset.public_name(variant.quantization)
        for record in records
        for variant in (*record.preset.variants, *record.unserved)
    }


def _variant_values(preset: str, variant: Variant) -> dict[str, Any]:
    fields = {field: getattr(variant, field) for field in _VARIANT_FIELDS}
    return {**fields, "preset": preset, "layer_bytes": list(variant.layer_bytes)}


def _record(row: Mapping[Any, Any], variant_rows: list[Any]) -> PresetRecord:
    preset = ModelPreset(
        **{field: row[field] for field in _PRESET_FIELDS},
        variants=tuple(_variant(v) for v in variant_rows if v["served"]),
    )
    unserved = tuple(_variant(v) for v in variant_rows if not v["served"])
    return PresetRecord(preset, unserved, row["added_at"], row["canary"])


def _variant(row: Mapping[Any, Any]) -> Variant:
    fields = {field: row[field] for field in _VARIANT_FIELDS}
    return Variant(**fields, layer_bytes=tuple(row["layer_bytes"]))
