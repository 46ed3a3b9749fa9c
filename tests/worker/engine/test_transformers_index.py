import os
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import pytest
import transformers
from transformers.utils.import_utils import create_import_structure_from_path

from meshnet_worker.engine import transformers_index
from meshnet_worker.engine.transformers_index import Index, remembering

MODELS = Path(transformers.__path__[0]) / "models"
READ_MODELS = """
import sys
from pathlib import Path

opened = []
sys.addaudithook(lambda event, given: opened.append(str(given[0])) if event == "open" else None)
from meshnet_worker.engine.transformers_index import remember_index

remember_index(Path(sys.argv[1]))
from transformers import LlamaConfig

print(len({file for file in opened if "/models/" in file and file.endswith(".py")}))
"""


def _never(_path: object) -> NoReturn:
    raise AssertionError


class Scan:
    """Finds as many indexes as it is asked for."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, _path: object) -> Index:
        self.count += 1
        return {"llama": {frozenset({"torch"}): {"modeling_llama": {f"Name{self.count}"}}}}


@pytest.fixture
def models(tmp_path: Path) -> Path:
    (tmp_path / "models").mkdir()
    return tmp_path / "models"


def test_what_is_remembered_is_what_transformers_finds(tmp_path: Path) -> None:
    file = tmp_path / "new" / "index.json"
    found = create_import_structure_from_path(MODELS)
    assert remembering(create_import_structure_from_path, file)(MODELS) == found
    assert remembering(_never, file)(MODELS) == found
    assert remembering(_never, file)(str(MODELS / "__init__.py")) == found


def test_one_scan_is_enough_where_nothing_can_be_written(models: Path, tmp_path: Path) -> None:
    scan, no_folder = Scan(), tmp_path / "file"
    no_folder.touch()
    remembered = remembering(scan, no_folder / "index.json")
    assert remembered(models) == remembered(str(models / "__init__.py"))
    assert scan.count == 1


def test_any_other_folder_is_read(models: Path, tmp_path: Path) -> None:
    scan = Scan()
    remembered = remembering(scan, tmp_path / "index.json")
    assert remembered(models / "llama") != remembered(models / "llama")
    assert not (tmp_path / "index.json").exists()


def test_another_installation_is_read_anew(models: Path, tmp_path: Path) -> None:
    file = tmp_path / "index.json"
    first = remembering(Scan(), file)(models)
    os.utime(models, (1, 1))
    scan = Scan()
    scan.count = 1
    assert remembering(scan, file)(models) != first


def test_another_release_in_the_same_place_is_read_anew(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A list of models that says it is as old as the one before may be another one."""
    file, scan = tmp_path / "index.json", Scan()
    remembering(scan, file)(models)
    monkeypatch.setattr(transformers_index, "version", lambda _name: "999.0")
    remembering(scan, file)(models)
    assert scan.count == 2
    assert [each.name for each in tmp_path.iterdir() if each != models] == ["index.json"]


@pytest.mark.parametrize("text", [b"", b"{", b'{"installation": [1, 2], "index": []}', b"[]"])
def test_a_file_that_says_nothing_is_written_anew(
    models: Path, tmp_path: Path, text: bytes
) -> None:
    file = tmp_path / "index.json"
    file.write_bytes(text)
    found = remembering(Scan(), file)(models)
    assert remembering(_never, file)(models) == found


def test_a_second_process_reads_no_model_that_it_does_not_use(tmp_path: Path) -> None:
    first, second = (
        int(subprocess.check_output((sys.executable, "-c", READ_MODELS, str(tmp_path))))
        for _ in range(2)
    )
    assert second < 20 < 1000 < first
