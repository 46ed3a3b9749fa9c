from pathlib import Path

import pytest

from meshnet_common.weights.manifest import BadIndexError
from meshnet_tracker.opening import make_store, open_store
from meshnet_tracker.presets.errors import (
    GgufVariantError,
    NoCheckpointError,
    PresetNameError,
    QuantizationError,
)
from meshnet_tracker.presets.manifests import folder_manifest
from meshnet_tracker.registry import (
    add_preset,
    list_presets,
    migrate_database,
    remove_preset,
    show_preset,
)
from meshnet_tracker.store.errors import PresetExistsError, UnknownPresetError
from meshnet_tracker.store.migrate import head_revision
from tests.gguf_files import tiny_llama_gguf
from tests.tracker.presets.checkpoints import LLAMA_CONFIG, write_checkpoint
from tests.weights import mirror_of


@pytest.fixture
async def database(tmp_path: Path) -> str:
    name = str(tmp_path / "t.sqlite3")
    async with make_store(name):
        return name


async def test_migrating_says_what_it_did(tmp_path: Path) -> None:
    database = str(tmp_path / "new.sqlite3")
    assert await migrate_database(database) == [
        f"The database was migrated from revision empty to {head_revision()}."
    ]
    assert await migrate_database(database) == ["The database is up to date."]


async def test_the_figures_of_every_quantization_are_shown(database: str, tmp_path: Path) -> None:
    folder = str(write_checkpoint(tmp_path / "tiny"))
    await add_preset(database, folder, None, ("float32", "bfloat16"))
    lines = await show_preset(database, "tiny")
    table = [line.split() for line in lines]
    assert ["float32", "tiny", "288", "1600", "1632", "32"] in table
    assert ["bfloat16", "tiny-bfloat16", "144", "800", "816", "16"] in table
    assert ["nf4", "(not", "served)", "52", "800", "816", "16"] in table


async def test_a_preset_may_be_given_another_name(database: str, tmp_path: Path) -> None:
    folder = str(write_checkpoint(tmp_path / "tiny"))
    await add_preset(database, folder, "org/mine", ())
    assert (await list_presets(database))[0].startswith("org/mine  3 layers")


async def test_an_empty_registry_says_how_to_begin(database: str) -> None:
    assert "preset add" in (await list_presets(database))[0]


async def test_what_goes_wrong_is_told_and_changes_nothing(database: str, tmp_path: Path) -> None:
    folder = str(write_checkpoint(tmp_path / "tiny"))
    with pytest.raises(NoCheckpointError):
        await add_preset(database, str(tmp_path / "nothing"), None, ())
    with pytest.raises(UnknownPresetError):
        await remove_preset(database, "tiny")
    await add_preset(database, folder, None, ())
    with pytest.raises(PresetExistsError):
        await add_preset(database, folder, None, ())
    assert len(await list_presets(database)) == 1


async def test_a_folders_tensors_are_hashed_and_what_can_be_checked_is_said(
    database: str, tmp_path: Path
) -> None:
    folder = write_checkpoint(tmp_path / "tiny")
    lines = await add_preset(database, str(folder), None, ())
    assert "  checked         the SHA-256 of each tensor" in lines
    async with open_store(database) as store:
        manifest = await store.manifest("tiny")
        (record,) = await store.presets()
    assert manifest == await folder_manifest(folder)
    assert record.preset.manifest is None


async def test_other_weights_are_another_variant(database: str, tmp_path: Path) -> None:
    one, other = write_checkpoint(tmp_path / "one"), write_checkpoint(tmp_path / "other")
    content = bytearray((other / "model.safetensors").read_bytes())
    content[-1] ^= 1
    (other / "model.safetensors").write_bytes(content)
    for folder in (one, other):
        await add_preset(database, str(folder), None, ())
    async with open_store(database) as store:
        first, second = await store.presets()
    assert first.preset.variants[0].digest != second.preset.variants[0].digest


async def test_a_mirror_takes_its_digests_from_a_copy(database: str, tmp_path: Path) -> None:
    copy = write_checkpoint(tmp_path / "tiny")
    files = {file.name: file.read_bytes() for file in copy.iterdir()}
    async with mirror_of(files) as mirror:
        lines = await add_preset(database, mirror.url, "plain", ())
        assert any("to check tensors, give a copy" in line for line in lines)
        lines = await add_preset(database, mirror.url, "checked", (), copy)
        assert "  checked         the SHA-256 of each tensor" in lines
        write_checkpoint(copy, dtype="F32")
        with pytest.raises(BadIndexError, match="differs"):
            await add_preset(database, mirror.url, "third", (), copy)
    async with open_store(database) as store:
        manifest = await store.manifest("checked")
    assert manifest is not None
    assert manifest.file("model.safetensors") is not None


async def test_a_gguf_file_adds_its_variant_to_a_model(database: str, tmp_path: Path) -> None:
    await add_preset(database, str(tiny_checkpoint(tmp_path)), None, ())
    file = tiny_llama_gguf(tmp_path / "tiny.gguf", "Q8_0")
    lines = await add_preset(database, str(file), "tiny", ())
    assert lines[0] == "Added tiny-q8_0 to tiny:"
    assert f"  source of q8_0  {file}" in lines
    assert (await list_presets(database))[0].startswith("tiny  3 layers  bfloat16, q8_0")
    with pytest.raises(PresetExistsError, match="tiny-q8_0"):
        await add_preset(database, str(file), "tiny", ())


async def test_a_gguf_file_needs_its_model_and_nothing_else(database: str, tmp_path: Path) -> None:
    file = str(tiny_llama_gguf(tmp_path / "tiny.gguf", "Q8_0"))
    with pytest.raises(UnknownPresetError, match="tiny"):
        await add_preset(database, file, "tiny", ())
    with pytest.raises(PresetNameError, match="--name"):
        await add_preset(database, file, None, ())
    with pytest.raises(QuantizationError, match="leave --quantization out"):
        await add_preset(database, file, "tiny", ("int8",))
    await add_preset(database, str(write_checkpoint(tmp_path / "other")), None, ())
    with pytest.raises(GgufVariantError, match="not of other"):
        await add_preset(database, file, "other", ())


def tiny_checkpoint(folder: Path) -> Path:
    shapes = {"model.embed_tokens.weight": (64, 32), "model.norm.weight": (32,)}
    for layer in range(3):
        shapes[f"model.layers.{layer}.self_attn.q_proj.weight"] = (32, 32)
    config = {**LLAMA_CONFIG, "hidden_size": 32, "vocab_size": 64}
    return write_checkpoint(folder / "tiny", config, shapes)
