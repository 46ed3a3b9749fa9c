from pathlib import Path

import pytest

from meshnet_tracker.opening import open_store
from meshnet_tracker.store.errors import DatabaseUnavailableError


async def test_a_sqlite_file_is_made_and_migrated(tmp_path: Path) -> None:
    async with open_store(str(tmp_path / "new" / "t.sqlite3")) as store:
        await store.check_schema()
        assert await store.presets() == ()


async def test_a_database_server_out_of_reach_or_without_its_driver_is_said_so() -> None:
    with pytest.raises(DatabaseUnavailableError):
        async with open_store("postgresql://127.0.0.1:9/nothing"):
            pass
