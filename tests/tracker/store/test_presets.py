from dataclasses import replace

import msgspec
import pytest

from meshnet_common.ids import PresetName
from meshnet_tracker.store.errors import PresetExistsError, UnknownPresetError
from meshnet_tracker.store.store import Store
from tests.tracker.builders import NOW, preset
from tests.tracker.store.meshes import preset_version
from tests.weights import checkpoint, manifest_of


async def test_a_preset_comes_back_as_it_was_kept(store: Store) -> None:
    record = preset(quantizations=("float32", "bfloat16"))
    await store.add_preset(record, NOW)
    assert await store.presets() == (record,)


async def test_a_manifest_is_kept_beside_its_preset_and_goes_with_it(store: Store) -> None:
    manifest = manifest_of(checkpoint())
    record = preset()
    known = msgspec.structs.replace(record.preset, manifest=manifest)
    await store.add_preset(replace(record, preset=known), NOW)
    assert await store.manifest("tiny") == manifest
    assert await store.presets() == (record,)
    await store.remove_preset(PresetName("tiny"))
    assert await store.manifest("tiny") is None


async def test_presets_come_by_name(store: Store) -> None:
    for name in ("zeta", "alpha"):
        await store.add_preset(preset(name), NOW)
    assert [record.preset.name for record in await store.presets()] == ["alpha", "zeta"]


async def test_a_name_is_given_once(store: Store) -> None:
    await store.add_preset(preset("tiny"), NOW)
    with pytest.raises(PresetExistsError, match="tiny"):
        await store.add_preset(preset("tiny"), NOW)


async def test_a_variants_public_name_cannot_be_taken_by_a_preset(store: Store) -> None:
    await store.add_preset(preset("tiny"), NOW)
    with pytest.raises(PresetExistsError, match="tiny-nf4"):
        await store.add_preset(preset("tiny-nf4"), NOW)


async def test_a_removed_preset_leaves_nothing_behind(store: Store) -> None:
    await store.add_preset(preset("tiny"), NOW)
    await store.remove_preset(PresetName("tiny"))
    assert await store.presets() == ()
    await store.add_preset(preset("tiny"), NOW)


async def test_an_unknown_preset_cannot_be_removed(store: Store) -> None:
    with pytest.raises(UnknownPresetError, match="nothing"):
        await store.remove_preset(PresetName("nothing"))


async def test_every_change_is_seen_in_the_version(store: Store) -> None:
    versions = [await preset_version(store)]
    await store.add_preset(preset("tiny"), NOW)
    versions.append(await preset_version(store))
    await store.remove_preset(PresetName("tiny"))
    versions.append(await preset_version(store))
    assert len(set(versions)) == 3


async def test_a_variant_can_be_added_to_a_preset(store: Store) -> None:
    await store.add_preset(preset("tiny"), NOW)
    version = await preset_version(store)
    before = (await store.presets())[0].preset
    more = msgspec.structs.replace(
        before.variants[0], quantization="q4k", gguf="/m/tiny.gguf", gguf_sha256="ab"
    )
    await store.add_variant(PresetName("tiny"), more)
    assert (await store.presets())[0].preset.variants == (*before.variants, more)
    assert await preset_version(store) != version
    with pytest.raises(PresetExistsError, match="tiny-q4k"):
        await store.add_variant(PresetName("tiny"), more)
    with pytest.raises(UnknownPresetError, match="other"):
        await store.add_variant(PresetName("other"), more)
