from pathlib import Path

import pytest

from meshnet_tracker.copies import back_up_database
from meshnet_tracker.store.errors import BackupError, DatabaseUnavailableError
from meshnet_tracker.store.store import Store
from tests.tracker.builders import NOW, preset


async def test_a_copy_is_made_and_how_to_restore_it_is_said(store: Store, tmp_path: Path) -> None:
    await store.add_preset(preset(), NOW)
    target = tmp_path / "copy.sqlite3"
    for database in (str(tmp_path / "tracker.sqlite3"), f"sqlite:///{tmp_path}/tracker.sqlite3"):
        said = " ".join(await back_up_database(database, target))
        assert "To restore it, stop all Trackers" in said
        copy = Store.open(str(target))
        assert await copy.presets() == await store.presets()
        await copy.close()
        remove(tmp_path, "copy.sqlite3*")


async def test_of_postgresql_its_own_tools_make_copies(tmp_path: Path) -> None:
    with pytest.raises(BackupError, match="pg_dump"):
        await back_up_database("postgresql+asyncpg://localhost/mesh", tmp_path / "copy")
    with pytest.raises(DatabaseUnavailableError):
        await back_up_database("oracle://localhost/mesh", tmp_path / "copy")
    assert is_empty(tmp_path)


def is_empty(folder: Path) -> bool:
    return not any(folder.iterdir())


def remove(folder: Path, pattern: str) -> None:
    for file in folder.glob(pattern):
        file.unlink()
