"""What the `preset` and `migrate` commands do: work on the database, say in lines what came of it.

A running Tracker needs no word of it: it looks at the registry's version once a second.
"""

import asyncio
from dataclasses import replace
from pathlib import Path

from meshnet_common.edge.clock import SystemClock
from meshnet_common.ids import PresetName
from meshnet_common.presets import Variant
from meshnet_common.weights.manifest import Manifest
from meshnet_tracker.opening import make_store, open_store
from meshnet_tracker.presets.checkpoint import Checkpoint, make_preset
from meshnet_tracker.presets.errors import PresetNameError, QuantizationError
from meshnet_tracker.presets.gguf_file import is_gguf, read_gguf_variant
from meshnet_tracker.presets.manifests import folder_manifest
from meshnet_tracker.presets.sources import default_name, read_checkpoint
from meshnet_tracker.records import PresetRecord
from meshnet_tracker.store.errors import UnknownPresetError
from meshnet_tracker.store.store import Store


async def migrate_database(database: str) -> list[str]:
    """Migrate; raises SchemaError, DatabaseUnavailableError."""
    store = Store.open(database)
    try:
        migrated = await store.migrate()
    finally:
        await store.close()
    if migrated is None:
        return ["The database is up to date."]
    return [f"The database was migrated from revision {migrated[0]} to {migrated[1]}."]


async def add_preset(
    database: str,
    source: str,
    name: str | None,
    quantizations: tuple[str, ...],
    copy: Path | None = None,
    *,
    canary: bool = False,
) -> list[str]:
    """Read a checkpoint's description and keep it; raises CheckpointError, PresetExistsError.

    Of a folder, or of a `copy` of what the source has, all weights are hashed. A GGUF file becomes
    one more Variant of the preset `name`; raises UnknownPresetError. A Canary answers under
    `/canary` only, until an Alias stands for it.
    """
    if is_gguf(source):
        return await _add_gguf_variant(database, Path(source), name, quantizations)
    checkpoint = await asyncio.to_thread(read_checkpoint, source)
    # Before the weights are read, which may take minutes.
    record = make_preset(checkpoint, name or default_name(source), quantizations)
    checkpoint = replace(checkpoint, manifest=await _manifest(checkpoint, copy))
    record = make_preset(checkpoint, record.preset.name, quantizations)
    record = replace(record, is_canary=canary)
    async with make_store(database) as store:
        await store.add_preset(record, SystemClock().now())
    return [f"Added {record.preset.name}:", *_describe(record)]


async def _manifest(checkpoint: Checkpoint, copy: Path | None) -> Manifest:
    if checkpoint.manifest is None:
        return await folder_manifest(Path(checkpoint.source))
    if copy is None:
        return checkpoint.manifest
    return checkpoint.manifest.with_digests_of(await folder_manifest(copy))


async def _add_gguf_variant(
    database: str, file: Path, name: str | None, quantizations: tuple[str, ...]
) -> list[str]:
    if name is None:
        raise PresetNameError("Say with --name of which model the GGUF file is a Variant.")
    if quantizations:
        raise QuantizationError("A GGUF file is quantized already; leave --quantization out.")
    async with open_store(database) as store:
        record = await _find_record(store, name)
        variant = await asyncio.to_thread(read_gguf_variant, record, file)
        await store.add_variant(PresetName(name), variant)
        added = await _find_record(store, name)
    public_name = added.preset.public_name(variant.quantization)
    return [f"Added {public_name} to {name}:", *_describe(added)]


async def list_presets(database: str) -> list[str]:
    """List all presets, one a line."""
    async with open_store(database) as store:
        records = await store.presets()
    if not records:
        return ["No models. Add one with `meshnet-tracker preset add DIR|REPO`."]
    return [_summary(record) for record in records]


async def show_preset(database: str, name: str) -> list[str]:
    """Describe one preset; raises UnknownPresetError."""
    async with open_store(database) as store:
        record = await _find_record(store, name)
    return [f"{record.preset.name}:", *_describe(record)]


async def remove_preset(database: str, name: str) -> list[str]:
    """Remove one preset; raises UnknownPresetError."""
    async with open_store(database) as store:
        await store.remove_preset(PresetName(name))
    return [f"Removed {name}."]


async def _find_record(store: Store, name: str) -> PresetRecord:
    for record in await store.presets():
        if record.preset.name == name:
            return record
    raise UnknownPresetError(f"{name}. `meshnet-tracker preset list` shows all.")


def _summary(record: PresetRecord) -> str:
    preset = record.preset
    served = ", ".join(variant.quantization for variant in preset.variants)
    mark = "  canary" if record.is_canary else ""
    return f"{preset.name}  {preset.layer_count} layers  {served}  {preset.source}{mark}"


def _describe(record: PresetRecord) -> list[str]:
    preset = record.preset
    served = [_figures(v, preset.public_name(v.quantization)) for v in preset.variants]
    return [
        f"  source          {preset.source}",
        *_checked(preset.manifest),
        *(f"  source of {v.quantization:<6}{v.gguf}" for v in preset.variants if v.gguf),
        f"  architecture    {preset.architecture}",
        f"  layers          {preset.layer_count}",
        f"  hidden size     {preset.hidden_size}",
        f"  vocabulary      {preset.vocabulary_size}",
        f"  context         {preset.context_tokens} tokens",
        f"  {'variant':<10}{'served as':<34}{'layer':>14}{'embeddings':>14}{'head':>14}{'KV':>9}",
        *served,
        *(_figures(variant, "(not served)") for variant in record.unserved),
        "  Figures are bytes; KV is per token and layer.",
    ]


def _checked(manifest: Manifest | None) -> list[str]:
    """Say what Workers can check; of a preset that is only shown nothing is said."""
    if manifest is None:
        return []
    weights = [file for file in manifest.files if file.name in manifest.weight_files]
    if all(file.tensors for file in weights):
        return ["  checked         the SHA-256 of each tensor"]
    if all(file.sha256 for file in weights):
        return ["  checked         the SHA-256 of each file, where all of it is fetched"]
    return [
        "  checked         sizes and headers; to check tensors, give a copy with --digests-from"
    ]


def _figures(variant: Variant, served_as: str) -> str:
    return (
        f"  {variant.quantization:<10}{served_as:<34}{variant.bytes_per_layer:>14}"
        f"{variant.embedding_bytes:>14}{variant.head_bytes:>14}"
        f"{variant.kv_bytes_per_token_per_layer:>9}"
    )
