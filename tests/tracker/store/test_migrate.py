import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Connection, inspect, text
from sqlalchemy.ext.asyncio import AsyncConnection

from meshnet_common.ids import WorkerId
from meshnet_common.protocol.messages import DirectiveState
from meshnet_tracker.signing import fresh_key
from meshnet_tracker.store import migrate
from meshnet_tracker.store.engine import database_url, open_engine
from meshnet_tracker.store.errors import (
    DatabaseUnavailableError,
    ForeignDatabaseError,
    NewerSchemaError,
    OlderSchemaError,
)
from meshnet_tracker.store.migrate import head_revision
from meshnet_tracker.store.schema import metadata
from meshnet_tracker.store.store import Store
from tests.tracker.builders import NOW, load, preset, shard
from tests.tracker.databases import KINDS, bare_postgres
from tests.tracker.store.meshes import beat, issue, join, leave, open_for

T = TypeVar("T")


@pytest.fixture(params=KINDS)
async def bare_database(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[str]:
    """Name a database that has no tables yet, and that this test may damage."""
    if request.param == "postgresql":
        async with bare_postgres() as url:
            yield url
    else:
        yield str(tmp_path / "t.sqlite3")


@pytest.fixture
async def store(bare_database: str) -> AsyncIterator[Store]:
    opened = Store.open(bare_database)
    yield opened
    await opened.close()


@asynccontextmanager
async def connected(database: str) -> AsyncIterator[AsyncConnection]:
    engine = open_engine(database_url(database), statement_seconds=None)
    async with engine.begin() as connection:
        yield connection
    await engine.dispose()


async def run(database: str, work: Callable[[Connection], T]) -> T:
    async with connected(database) as connection:
        return await connection.run_sync(work)


async def move_to(database: str, revision: str) -> None:
    """Bring the schema to a revision, up or down."""

    def move(connection: Connection) -> None:
        config = migrate._config()
        config.attributes["connection"] = connection
        current = MigrationContext.configure(connection).get_current_revision()
        goes_back = revision == "base" or revision < (current or "")
        (command.downgrade if goes_back else command.upgrade)(config, revision)

    await run(database, move)


def differences(connection: Connection) -> object:
    return compare_metadata(MigrationContext.configure(connection), metadata)


def tables(connection: Connection) -> set[str]:
    return set(inspect(connection).get_table_names())


async def test_an_empty_database_is_brought_to_the_newest_revision(store: Store) -> None:
    assert await store.migrate() == ("empty", head_revision())
    assert await store.migrate() is None
    await store.check_schema()


async def test_revisions_and_tables_agree(store: Store, bare_database: str) -> None:
    await store.migrate()
    assert await run(bare_database, differences) == []


async def test_every_revision_leads_back_and_forth_and_leaves_what_is_there(
    store: Store, bare_database: str
) -> None:
    await store.migrate()
    await store.add_preset(preset(), NOW)
    await store.add_signing_key(fresh_key(NOW))
    await join(store, "w1", shard(0, 3))
    await issue(store, load("w1", 3, 6))
    await store.next_admission_seq()
    before = await store.presets(), await store.signing_keys(), await open_for(store, "w1")
    (worker,) = await store.workers()
    revisions = sorted(script.revision for script in migrate._scripts().walk_revisions())
    for revision in reversed(revisions[:-1]):
        await move_to(bare_database, revision)
        await move_to(bare_database, head_revision())
        assert await run(bare_database, differences) == [], revision
    assert before == (
        await store.presets(),
        await store.signing_keys(),
        await open_for(store, "w1"),
    )
    (after,) = await store.workers()
    assert (after.shards, after.directives) == (worker.shards, worker.directives)
    assert [order.state for order in after.directives] == [DirectiveState.ISSUED]
    assert await store.next_admission_seq() == 2


async def test_all_can_be_taken_back_with_rows_in_every_table(
    store: Store, bare_database: str
) -> None:
    await store.migrate()
    await store.add_preset(preset(), NOW)
    await join(store, "w1", shard(0, 6))
    await beat(store, "w1", shard(0, 6), leaving=True)
    await store.move_head("s1", 1, NOW)
    await store.leadership.take("one")
    await move_to(bare_database, "0003")
    assert "incarnations" not in await run(bare_database, tables)
    await move_to(bare_database, "base")
    assert await run(bare_database, tables) == {"alembic_version"}
    await move_to(bare_database, head_revision())
    assert await run(bare_database, differences) == []
    assert await store.workers() == ()
    assert await store.next_incarnation("s1", 1, NOW) == 2


async def test_workers_that_were_there_before_a_migration_go_on(
    store: Store, bare_database: str
) -> None:
    await store.migrate()
    await join(store, "w1", shard(0, 6))
    await beat(store, "w1", shard(0, 6), leaving=True)
    await move_to(bare_database, "0003")
    await move_to(bare_database, head_revision())
    (worker,) = await store.workers()
    assert (worker.worker_id, worker.is_leaving) == (WorkerId("w1"), False)
    assert worker.shards == (shard(0, 6),)


async def test_workers_that_said_goodbye_do_not_come_back_as_lost_ones(
    store: Store, bare_database: str
) -> None:
    await store.migrate()
    await join(store, "w1")
    await join(store, "w2")
    await leave(store, "w1")
    await move_to(bare_database, "0004")

    def ids(connection: Connection) -> list[str]:
        return list(connection.execute(text("SELECT id FROM workers")).scalars())

    assert await run(bare_database, ids) == ["w2"]


async def test_a_database_without_tables_is_too_old_to_work_on(store: Store) -> None:
    with pytest.raises(OlderSchemaError, match="meshnet-tracker migrate"):
        await store.check_schema()


async def test_a_newer_schema_is_refused_and_left_alone(store: Store, bare_database: str) -> None:
    await store.migrate()
    async with connected(bare_database) as connection:
        await connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(NewerSchemaError, match="revision 9999"):
        await store.check_schema()
    with pytest.raises(NewerSchemaError, match="Install the newer release"):
        await store.migrate()


async def test_a_database_of_another_program_is_refused(store: Store, bare_database: str) -> None:
    async with connected(bare_database) as connection:
        await connection.execute(text("CREATE TABLE albums (title TEXT)"))
    with pytest.raises(ForeignDatabaseError):
        await store.migrate()


async def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "junk.sqlite3"
    file.write_bytes(b"not a database at all, but long enough to look at" * 40)
    store = Store.open(str(file))
    with pytest.raises(DatabaseUnavailableError, match="not a database"):
        await store.migrate()
    await store.close()


async def test_a_migration_that_fails_changes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "t.sqlite3"
    store = Store.open(str(file))
    await store.migrate()
    await move_to(str(file), "0004")
    with sqlite3.connect(file) as raw:
        raw.execute("CREATE TABLE pins (in_the_way)")
    raw.close()
    with pytest.raises(DatabaseUnavailableError, match="pins"):
        await store.migrate()
    assert "region" not in await run(str(file), _worker_columns)
    await store.close()


def _worker_columns(connection: Connection) -> set[str]:
    return {column["name"] for column in inspect(connection).get_columns("workers")}
