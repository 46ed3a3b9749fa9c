from pathlib import Path

import pytest

from meshnet_common.edge.remote_files import SourceUnreachableError
from meshnet_tracker.presets.errors import NoCheckpointError
from meshnet_tracker.presets.sources import default_name, read_checkpoint
from tests.tracker.presets.checkpoints import write_checkpoint


def test_a_folder_wins_over_a_repository_of_that_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_checkpoint(tmp_path / "org" / "tiny")
    assert read_checkpoint("org/tiny").source == str(tmp_path / "org" / "tiny")


@pytest.mark.parametrize("source", ["nothing", "a/b/c", "../nowhere/at/all", "org/na me"])
def test_what_is_neither_folder_nor_repository_is_refused(source: str) -> None:
    with pytest.raises(NoCheckpointError, match="neither a folder here nor a repository"):
        read_checkpoint(source)


def test_a_url_is_a_mirror() -> None:
    with pytest.raises(SourceUnreachableError, match=r"http://127\.0\.0\.1:9/tiny"):
        read_checkpoint("http://127.0.0.1:9/tiny/")


def test_a_file_is_refused(tmp_path: Path) -> None:
    file = write_checkpoint(tmp_path) / "model.safetensors"
    with pytest.raises(NoCheckpointError, match="is a file"):
        read_checkpoint(str(file))


def test_a_preset_is_named_after_the_last_part(tmp_path: Path) -> None:
    assert default_name("org/Tiny-1B") == "Tiny-1B"
    assert default_name("https://mirror.example/models/Tiny-1B/") == "Tiny-1B"
    assert default_name(str(write_checkpoint(tmp_path / "mine"))) == "mine"
