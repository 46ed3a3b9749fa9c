import pytest
from sqlalchemy import make_url
from sqlalchemy.schema import CreateTable

from meshnet_tracker.store.schema import metadata


@pytest.mark.parametrize("dialect", ["sqlite+aiosqlite://", "postgresql+asyncpg://"])
def test_every_table_can_be_made_on_both_databases(dialect: str) -> None:
    compiled = make_url(dialect).get_dialect()()
    for table in metadata.sorted_tables:
        assert "CREATE TABLE" in str(CreateTable(table).compile(dialect=compiled))
