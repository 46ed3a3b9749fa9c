import sqlite3
from pathlib import Path

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Connection, create_engine, inspect

from meshnet_tracker.store import migrate
from meshnet_tracker.store.errors import (
    DatabaseUnavailableError,
    ForeignDatabaseError,
    NewerSchemaError,
    OlderSchemaError,
)
from meshnet_tracker.store.migrate import head_revision
from meshnet_tracker.store.schema import metadata
from meshnet_tracker.store.store import Store
from tests.tracker.builders import NOW, preset, shard
from tests.tracker.store.meshes import beat, join


async def test_an_empty_file_is_brought_to_the_newest_revision(tmp_path: Path) -> None:
    store = Store.open(str(tmp_path / "t.sqlite3"))
    assert await store.migrate() == ("empty", head_revision())
    assert await store.migrate() is None
    await store.check_schema()
    await store.close()


@pytest.mark.usefixtures("store")
async def test_revisions_and_tables_agree(tmp_path: Path) -> None:
    def differences(connection: Connection) -> object:
        return compare_metadata(MigrationContext.configure(connection), metadata)

    engine = create_engine(f"sqlite:///{tmp_path / 'tracker.sqlite3'}")
    with engine.connect() as connection:
        assert differences(connection) == []
    engine.dispose()


async def test_revisions_lead_back_and_forth_and_leave_what_is_there(
    store: Store, tmp_path: Path
) -> None:
    await store.add_preset(preset(), NOW)
    await join(store, "w1", shard(0, 6))
    before = await store.presets(), await store.workers()
    engine = create_engine(f"sqlite:///{tmp_path / 'tracker.sqlite3'}")
    with engine.begin() as connection:
        config = migrate._config()
        config.attributes["connection"] = connection
        command.downgrade(config, "0001")
        assert "manifests" not in inspect(connection).get_table_names()
        command.upgrade(config, "head")
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []
    engine.dispose()
    presets, (worker,) = await store.presets(), await store.workers()
    assert (presets, worker.shards) == (before[0], before[1][0].shards)


async def test_the_newest_revision_can_be_taken_back_with_renewals_and_leaving_workers_in_place(
    store: Store, tmp_path: Path
) -> None:
    await join(store, "w1", shard(0, 6))
    await beat(store, "w1", shard(0, 6), leaving=True)
    await store.move_head("s1", 1, NOW)
    engine = create_engine(f"sqlite:///{tmp_path / 'tracker.sqlite3'}")
    with engine.begin() as connection:
        config = migrate._config()
        config.attributes["connection"] = connection
        command.downgrade(config, "0003")
        assert "incarnations" not in inspect(connection).get_table_names()
        columns = {column["name"] for column in inspect(connection).get_columns("workers")}
        assert "leaving" not in columns
        command.upgrade(config, "head")
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []
    engine.dispose()
    (worker,) = await store.workers()
    assert (worker.shards, worker.is_leaving) == ((shard(0, 6),), False)
    assert (await store.renewals("s1")).head_since == 0
    assert await store.next_incarnation("s1", 1, NOW) == 2


async def test_a_database_without_tables_is_too_old_to_work_on(tmp_path: Path) -> None:
    store = Store.open(str(tmp_path / "t.sqlite3"))
    with pytest.raises(OlderSchemaError, match="meshnet-tracker migrate"):
        await store.check_schema()
    await store.close()


async def test_a_newer_schema_is_refused_and_left_alone(store: Store, tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "tracker.sqlite3") as raw:
        raw.execute("UPDATE alembic_version SET version_num = '9999'")
    raw.close()
    with pytest.raises(NewerSchemaError, match="revision 9999"):
        await store.check_schema()
    with pytest.raises(NewerSchemaError, match="Install the newer release"):
        await store.migrate()


async def test_a_database_of_another_program_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "other.sqlite3"
    with sqlite3.connect(file) as raw:
        raw.execute("CREATE TABLE albums (title)")
    raw.close()
    store = Store.open(str(file))
    with pytest.raises(ForeignDatabaseError):
        await store.migrate()
    await store.close()


async def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "junk.sqlite3"
    file.write_bytes(b"not a database at all, but long enough to look at" * 40)
    store = Store.open(str(file))
    with pytest.raises(DatabaseUnavailableError, match="not a database"):
        await store.migrate()
    await store.close()
