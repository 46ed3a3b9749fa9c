import pytest
from sqlalchemy.dialects.postgresql.asyncpg import PGDialect_asyncpg
from sqlalchemy.dialects.sqlite.aiosqlite import SQLiteDialect_aiosqlite
from sqlalchemy.engine import Dialect
from sqlalchemy.schema import CreateTable

from meshnet_tracker.store.schema import metadata


@pytest.mark.parametrize("dialect", [SQLiteDialect_aiosqlite(), PGDialect_asyncpg()])
def test_every_table_can_be_made_on_both_databases(dialect: Dialect) -> None:
    for table in metadata.sorted_tables:
        assert "CREATE TABLE" in str(CreateTable(table).compile(dialect=dialect))
