from pathlib import Path

import pytest

from meshnet_tracker.presets.errors import GgufVariantError
from meshnet_tracker.presets.gguf_file import is_gguf, read_gguf_variant
from tests.gguf_files import tiny_llama_gguf
from tests.tracker.presets.test_gguf import record


def test_a_gguf_file_is_known_by_its_first_bytes(tmp_path: Path) -> None:
    assert is_gguf(str(tiny_llama_gguf(tmp_path / "weights", "Q8_0")))
    (tmp_path / "empty.gguf").touch()
    assert not is_gguf(str(tmp_path / "empty.gguf"))
    assert not is_gguf(str(tmp_path))
    assert not is_gguf("org/name")


def test_a_variant_names_its_file_and_depends_on_every_byte(tmp_path: Path) -> None:
    file = tiny_llama_gguf(tmp_path / "tiny.gguf", "Q8_0")
    before = read_gguf_variant(record(), file)
    assert before.gguf == str(file.resolve())
    data = bytearray(file.read_bytes())
    data[-40] ^= 1
    file.write_bytes(data)
    assert read_gguf_variant(record(), file).digest != before.digest


def test_a_damaged_file_is_refused_by_name(tmp_path: Path) -> None:
    file = tiny_llama_gguf(tmp_path / "tiny.gguf", "Q8_0")
    file.write_bytes(file.read_bytes()[:-2000])
    with pytest.raises(GgufVariantError, match=r"tiny\.gguf: The file is cut short"):
        read_gguf_variant(record(), file)


def test_a_file_that_is_gone_is_told(tmp_path: Path) -> None:
    with pytest.raises(GgufVariantError, match="No such file"):
        read_gguf_variant(record(), tmp_path / "gone.gguf")
