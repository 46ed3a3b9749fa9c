"""Numbers that only ever grow, one row each, shared by all Trackers of one database."""

from enum import StrEnum

from sqlalchemy import select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from meshnet_tracker.store.schema import counters


class Counter(StrEnum):
    """Names of the rows, which the revisions put there."""

    DIRECTIVE_EPOCH = "directive_epoch"
    ADMISSION_SEQ = "admission_seq"
    PRESET_VERSION = "preset_version"
    MESH_CHANGE = "mesh_change"
    NEWS = "news"
    ISSUED_PLANS = "issued_plans"


async def read(connection: AsyncConnection, counter: Counter) -> int:
    """Return a counter's value, which others may raise at any time."""
    query = select(counters.c.value).where(counters.c.name == counter)
    value: int = (await connection.execute(query)).scalar_one()
    return value


async def read_all(connection: AsyncConnection) -> dict[str, int]:
    """Return all counters of one instant, by name."""
    rows = await connection.execute(select(counters.c.name, counters.c.value))
    return {row[0]: row[1] for row in rows}


async def advance(connection: AsyncConnection, counter: Counter, by: int = 1) -> int:
    """Add to a counter and return its new value; no two callers ever get the same one."""
    statement = (
        update(counters)
        .where(counters.c.name == counter)
        .values(value=counters.c.value + by)
        .returning(counters.c.value)
    )
    value: int = (await connection.execute(statement)).scalar_one()
    return value


async def raise_to(connection: AsyncConnection, counter: Counter, value: int) -> None:
    """Lift a counter to a value; one that is already higher stays."""
    is_lower = (counters.c.name == counter) & (counters.c.value < value)
    await connection.execute(update(counters).where(is_lower).values(value=value))
