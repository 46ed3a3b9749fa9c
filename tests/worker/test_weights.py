from pathlib import Path

import pytest

from meshnet_worker.weights import WANTED_FILES, WeightsNotFoundError, resolve_source


def test_a_folder_is_where_it_is(tmp_path: Path) -> None:
    assert resolve_source(str(tmp_path)) == tmp_path


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(WeightsNotFoundError, match=r"no folder .*nowhere; copy the model there"):
        resolve_source(str(tmp_path / "nowhere"))


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    file.touch()
    with pytest.raises(WeightsNotFoundError):
        resolve_source(str(file))


# The tests run without a hub, as a machine without a network does.
@pytest.mark.parametrize("source", ["nobody/no-such-model", "no such name", "a/b/c/d"])
def test_a_repository_that_cannot_be_fetched_is_named(source: str) -> None:
    with pytest.raises(WeightsNotFoundError):
        resolve_source(source)


def test_a_pickle_is_never_fetched() -> None:
    assert not any(pattern.endswith((".bin", ".pt", ".pth", ".pkl")) for pattern in WANTED_FILES)
