"""What costs time is made once: model folders, and one engine process for all who share it."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.worker.models import save_model

ModelFolders = Callable[[str], Path]


@pytest.fixture(scope="session")
def model_folders(tmp_path_factory: pytest.TempPathFactory) -> ModelFolders:
    """The folder of a small model by its name; nobody may change what is in it."""
    root = tmp_path_factory.mktemp("models")

    def folder(name: str) -> Path:
        if not (root / name).exists():
            save_model(name, root / name)
        return root / name

    return folder
