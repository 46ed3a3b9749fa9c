"""A Worker that fails a Rebalance Directive is given none for a while, longer each time."""

from sqlalchemy import select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from meshnet_common.ids import WorkerId
from meshnet_tracker.store.schema import workers

FIRST_COOLING_SECONDS = 10.0
MAX_COOLING_SECONDS = 600.0


def cooling_seconds(failures: int) -> float:
    """How long a Worker cools down after so many failures in a row, the first being 1."""
    doublings = min(failures - 1, 16)
    return min(FIRST_COOLING_SECONDS * 2.0**doublings, MAX_COOLING_SECONDS)


async def count_failure(connection: AsyncConnection, worker_id: WorkerId, now: float) -> None:
    """Count one more failure in a row and let the Worker cool down."""
    query = select(workers.c.failures).where(workers.c.id == worker_id)
    failures: int = (await connection.execute(query)).scalar_one() + 1
    until = now + cooling_seconds(failures)
    changed = update(workers).where(workers.c.id == worker_id)
    await connection.execute(changed.values(failures=failures, cooling_until=until))


async def forgive(connection: AsyncConnection, worker_id: WorkerId) -> None:
    """Forget a Worker's failures, once it has carried out a directive."""
    changed = update(workers).where(workers.c.id == worker_id)
    await connection.execute(changed.values(failures=0, cooling_until=0.0))
