import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from meshnet_tracker.opening import make_store, open_store
from meshnet_tracker.store.errors import DatabaseUnavailableError, OlderSchemaError


def is_empty(folder: Path) -> bool:
    return not list(folder.iterdir())


async def test_a_sqlite_file_is_made_and_migrated(tmp_path: Path) -> None:
    async with make_store(str(tmp_path / "new" / "t.sqlite3")) as store:
        await store.check_schema()
        assert await store.presets() == ()


async def test_a_file_that_is_there_is_opened(tmp_path: Path) -> None:
    async with make_store(str(tmp_path / "t.sqlite3")):
        pass
    async with open_store(str(tmp_path / "t.sqlite3")) as store:
        assert await store.presets() == ()


async def test_a_file_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(DatabaseUnavailableError, match="--database") as refusal:
        async with open_store(str(tmp_path / "new" / "t.sqlite3")):
            pass
    assert str(tmp_path / "new" / "t.sqlite3") in str(refusal.value)
    assert is_empty(tmp_path)


async def test_an_older_file_is_not_migrated_by_who_only_opens_it(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "t.sqlite3")) as file:
        file.execute("CREATE TABLE alembic_version (version_num)")
        file.execute("INSERT INTO alembic_version VALUES ('0001')")
        file.commit()
    with pytest.raises(OlderSchemaError, match="meshnet-tracker migrate"):
        async with open_store(str(tmp_path / "t.sqlite3")):
            pass
    with closing(sqlite3.connect(tmp_path / "t.sqlite3")) as file:
        assert file.execute("SELECT version_num FROM alembic_version").fetchall() == [("0001",)]


@pytest.mark.parametrize("opening", [open_store, make_store])
async def test_a_server_out_of_reach_is_named_with_what_to_do(opening: type[object]) -> None:
    with pytest.raises(DatabaseUnavailableError) as refusal:
        async with opening("postgresql://127.0.0.1:9/nothing"):  # type: ignore[attr-defined,call-arg]
            pass
    assert "127.0.0.1:9: " in str(refusal.value)
    assert "in --database" in str(refusal.value)
