"""A Worker that fails a Rebalance Directive is given none for a while, longer each time."""

from collections.abc import Collection

from sqlalchemy import bindparam, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from meshnet_common.ids import WorkerId
from meshnet_tracker.store.schema import workers
from meshnet_tracker.store.sets import among

FIRST_COOLING_SECONDS = 10.0
MAX_COOLING_SECONDS = 600.0


def cooling_seconds(failures: int) -> float:
    """How long a Worker cools down after so many failures in a row, the first being 1."""
    doublings = min(failures - 1, 16)
    return min(FIRST_COOLING_SECONDS * 2.0**doublings, MAX_COOLING_SECONDS)


async def count_failures(
    connection: AsyncConnection, worker_ids: Collection[WorkerId], now: float
) -> None:
    """Count one more failure in a row of each and let the Workers cool down."""
    if not worker_ids:
        return
    query = select(workers.c.id, workers.c.failures)
    found = await connection.execute(query.where(among(connection, workers.c.id, worker_ids)))
    rows = [
        {"own_id": name, "times": failures + 1, "until": now + cooling_seconds(failures + 1)}
        for name, failures in found
    ]
    changed = update(workers).where(workers.c.id == bindparam("own_id"))
    cooled = changed.values(failures=bindparam("times"), cooling_until=bindparam("until"))
    await connection.execute(cooled, rows)


async def count_failure(connection: AsyncConnection, worker_id: WorkerId, now: float) -> None:
    """Count one more failure in a row and let the Worker cool down."""
    await count_failures(connection, (worker_id,), now)


async def forgive(connection: AsyncConnection, worker_ids: Collection[WorkerId]) -> None:
    """Forget the failures of Workers, once they have carried out a directive."""
    if not worker_ids:
        return
    changed = update(workers).where(among(connection, workers.c.id, worker_ids))
    await connection.execute(changed.values(failures=0, cooling_until=0.0))
