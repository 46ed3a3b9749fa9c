"""Numbers that only ever grow, one row each, shared by all Trackers of one database."""

from enum import StrEnum

from sqlalchemy import bindparam, select, update
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


_READ = select(counters.c.value).where(counters.c.name == bindparam("counter"))
_READ_ALL = select(counters.c.name, counters.c.value)
_ADVANCE = (
    update(counters)
    .where(counters.c.name == bindparam("counter"))
    .values(value=counters.c.value + bindparam("by"))
    .returning(counters.c.value)
)


async def read(connection: AsyncConnection, counter: Counter) -> int:
    """Return a counter's value, which others may raise at any time."""
    value: int = (await connection.execute(_READ, {"counter": counter.value})).scalar_one()
    return value


async def read_all(connection: AsyncConnection) -> dict[str, int]:
    """Return all counters of one instant, by name."""
    rows = await connection.execute(_READ_ALL)
    return {row[0]: row[1] for row in rows}


async def advance(connection: AsyncConnection, counter: Counter, by: int = 1) -> int:
    """Add to a counter and return its new value; no two callers ever get the same one."""
    how_far = {"counter": counter.value, "by": by}
    value: int = (await connection.execute(_ADVANCE, how_far)).scalar_one()
    return value


async def raise_to(connection: AsyncConnection, counter: Counter, value: int) -> None:
    """Lift a counter to a value; one that is already higher stays."""
    is_lower = (counters.c.name == counter) & (counters.c.value < value)
    await connection.execute(update(counters).where(is_lower).values(value=value))
