import json

import msgspec
import pytest

from meshnet_common.weights.manifest import (
    INDEX_FILE,
    BadIndexError,
    FileRecord,
    Manifest,
    read_index,
)


def index_of(*files: str) -> bytes:
    return json.dumps({"weight_map": {f"t{n}": file for n, file in enumerate(files)}}).encode()


def record(
    name: str = "a.safetensors", size_bytes: int = 9, sha256: str = "", header_sha256: str = ""
) -> FileRecord:
    return FileRecord(name=name, size_bytes=size_bytes, sha256=sha256, header_sha256=header_sha256)


def test_an_index_names_each_file_once() -> None:
    names = read_index(index_of("b.safetensors", "a.safetensors", "b.safetensors"))
    assert names == ("a.safetensors", "b.safetensors")


@pytest.mark.parametrize(
    "name",
    [
        "../a.safetensors",
        "/etc/a.safetensors",
        "deep/a.safetensors",
        "..\\a.safetensors",
        ".a.safetensors",
        "a\0.safetensors",
        "a\n.safetensors",
        "a.bin",
        "",
    ],
)
def test_an_index_cannot_lead_out_of_its_folder_or_to_a_pickle(name: str) -> None:
    with pytest.raises(BadIndexError):
        read_index(index_of(name))


@pytest.mark.parametrize("junk", [b"", b"[]", b'{"weight_map": {}}', b'{"weight_map": [1]}'])
def test_an_index_that_is_junk_is_refused(junk: bytes) -> None:
    with pytest.raises(BadIndexError, match=INDEX_FILE):
        read_index(junk)


def test_a_digest_changes_with_any_byte_that_is_known() -> None:
    plain = Manifest(files=(record(),))
    assert plain.digest == Manifest(files=(record(),)).digest
    assert plain.digest != Manifest(files=(record(sha256="0" * 64),)).digest


def test_digests_of_a_copy_are_taken_over() -> None:
    known = FileRecord(name="a.safetensors", size_bytes=9, tensors={"t": "1" * 64})
    merged = Manifest(files=(record(header_sha256="2" * 64),), revision="r").with_digests_of(
        Manifest(files=(known,))
    )
    (file,) = merged.files
    assert (file.tensors, file.header_sha256, merged.revision) == ({"t": "1" * 64}, "2" * 64, "r")


def test_a_copy_of_something_else_is_refused() -> None:
    with pytest.raises(BadIndexError, match="size_bytes is 9 here, 8 there"):
        Manifest(files=(record(),)).with_digests_of(Manifest(files=(record(size_bytes=8),)))


def test_text_files_are_no_weight_files() -> None:
    manifest = Manifest(files=(record("config.json"), record()))
    assert manifest.weight_files == ("a.safetensors",)
    assert manifest.file("config.json") == record("config.json")
    assert manifest.file("b") is None


def test_a_manifest_survives_json() -> None:
    manifest = Manifest(files=(record(sha256="0" * 64),), revision="r")
    assert msgspec.json.decode(msgspec.json.encode(manifest), type=Manifest) == manifest
