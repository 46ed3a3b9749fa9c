import json
from pathlib import Path

import pytest

from meshnet_common.edge.remote_files import FIRST_BYTES, RemoteFiles, RemoteFolder, open_session
from meshnet_common.errors import MeshnetError
from meshnet_common.weights.errors import CheckpointError, HeaderError
from meshnet_common.weights.manifest import INDEX_FILE, Manifest
from meshnet_worker.weights.description import (
    STATE_FILE,
    describe,
    kept_description,
)
from meshnet_worker.weights.errors import DigestMismatchError, WeightsNotFoundError
from meshnet_worker.weights.layout import Layout
from tests.weights import LAYERS, SmallMirror, checkpoint, manifest_of, mirror_of, safetensors

FILES = checkpoint()
UNKNOWN = Manifest(files=())


async def described(mirror: SmallMirror, folder: Path, manifest: Manifest = UNKNOWN) -> Layout:
    async with open_session() as session:
        remote = RemoteFiles(session, RemoteFolder("m", f"{mirror.url}/"))
        return await describe(remote, manifest, folder, LAYERS)


async def test_a_description_is_kept_with_an_index_of_its_own(tmp_path: Path) -> None:
    async with mirror_of({**FILES, "tokenizer.json": b"{}"}) as mirror:
        layout = await described(mirror, tmp_path)
    assert (tmp_path / "tokenizer.json").read_bytes() == b"{}"
    assert (tmp_path / INDEX_FILE).read_bytes() == layout.index()
    kept = kept_description(tmp_path)
    assert kept is not None
    assert kept.files == layout.files


async def test_a_header_longer_than_the_first_request_is_read_whole(tmp_path: Path) -> None:
    sizes = {f"model.layers.{n}.{'w' * 100}.{m}": 2 for n in range(LAYERS) for m in range(90)}
    content = safetensors({"embed.weight": 10_000, **sizes})
    files = {"config.json": b"{}", "model.safetensors": content}
    async with mirror_of(files) as mirror:
        layout = await described(mirror, tmp_path)
    assert len(layout.files[0].start) > FIRST_BYTES


async def test_nothing_is_kept_of_a_description_that_fails(tmp_path: Path) -> None:
    async with mirror_of({"config.json": b"{}"}) as mirror:
        with pytest.raises(MeshnetError):
            await described(mirror, tmp_path)
    assert kept_description(tmp_path) is None
    (tmp_path / STATE_FILE).write_bytes(b"\xc1junk")
    assert kept_description(tmp_path) is None


async def test_a_source_without_config_is_refused(tmp_path: Path) -> None:
    async with mirror_of({"model.safetensors": FILES["model.safetensors"]}) as mirror:
        with pytest.raises(WeightsNotFoundError, match=r"has no config\.json"):
            await described(mirror, tmp_path)


@pytest.mark.parametrize(
    "name",
    ["../../escape.safetensors", "/escape.safetensors", "pytorch_model.bin", "a/b.safetensors"],
)
async def test_an_index_cannot_lead_out_of_the_folder(name: str, tmp_path: Path) -> None:
    index = json.dumps({"weight_map": {"x": name}}).encode()
    async with mirror_of({**FILES, INDEX_FILE: index}) as mirror:
        with pytest.raises(CheckpointError, match="no plain name"):
            await described(mirror, tmp_path)
    assert mirror.weight_requests == []


@pytest.mark.parametrize(
    "start",
    [
        b"\xff" * 8 + b"{}",
        (99_999_999).to_bytes(8, "little") + b"{}",
        (2).to_bytes(8, "little") + b"[]",
        b"",
        b"<html>the mirror is closed</html>",
    ],
    ids=["huge", "longer than the file", "no object", "empty", "a web page"],
)
async def test_a_hostile_header_is_refused_after_a_few_bytes(start: bytes, tmp_path: Path) -> None:
    content = start + bytes(1_000_000 if start else 0)
    async with mirror_of({**FILES, "model.safetensors": content}) as mirror:
        with pytest.raises(MeshnetError):
            await described(mirror, tmp_path)
        assert mirror.sent_bytes <= 2 * FIRST_BYTES


async def test_what_begins_otherwise_than_registered_is_refused(tmp_path: Path) -> None:
    other = {**FILES, "model.safetensors": FILES["model.safetensors"].replace(b"mlp", b"mlq")}
    async with mirror_of(other) as mirror:
        with pytest.raises((DigestMismatchError, HeaderError), match="SHA-256"):
            await described(mirror, tmp_path, manifest_of(FILES))


async def test_another_text_than_registered_is_refused(tmp_path: Path) -> None:
    async with mirror_of({**FILES, "config.json": b"{}"}) as mirror:
        with pytest.raises(DigestMismatchError, match=r"config\.json"):
            await described(mirror, tmp_path, manifest_of(FILES))
        del mirror.files["config.json"]
        with pytest.raises(WeightsNotFoundError, match=r"no config\.json any more"):
            await described(mirror, tmp_path, manifest_of(FILES))
    assert not (tmp_path / "config.json").exists()
