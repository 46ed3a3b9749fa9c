import hashlib
from pathlib import Path

import pytest

from meshnet_common.edge.local_files import read_file_start, sha256_of
from meshnet_common.weights.errors import HeaderError


def test_some_bytes_of_a_file_are_hashed(tmp_path: Path) -> None:
    content = bytes(range(256)) * 100
    (tmp_path / "f").write_bytes(content)
    assert sha256_of(tmp_path / "f") == hashlib.sha256(content).hexdigest()
    part = hashlib.sha256(content[10:9000]).hexdigest()
    assert sha256_of(tmp_path / "f", 10, 9000) == part


def test_a_start_is_the_length_and_the_json(tmp_path: Path) -> None:
    file = tmp_path / "a.safetensors"
    file.write_bytes((2).to_bytes(8, "little") + b"{}" + b"weights")
    assert read_file_start(file) == (2).to_bytes(8, "little") + b"{}"


def test_an_absurd_length_is_refused_with_the_files_name(tmp_path: Path) -> None:
    file = tmp_path / "a.safetensors"
    file.write_bytes(b"\xff" * 16)
    with pytest.raises(HeaderError, match=r"a\.safetensors: Its header claims"):
        read_file_start(file)
