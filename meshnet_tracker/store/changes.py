"""Numbers the changes of Workers that Routes or the planner may care about.

A transaction takes the next number and holds it until it commits, so numbers come in the order of
commits: whoever knows the Mesh at one number finds all that happened since above it.
"""

from collections.abc import Collection
from functools import cache
from typing import Any

from sqlalchemy import Update, bindparam, update
from sqlalchemy.ext.asyncio import AsyncConnection

from meshnet_common.ids import WorkerId
from meshnet_tracker.store import counters
from meshnet_tracker.store.counters import Counter
from meshnet_tracker.store.schema import workers
from meshnet_tracker.store.sets import NAMES, among_names, listed

NUMBERED: Any = {
    workers.c.changed: bindparam("number"),
    workers.c.changed_beside_load: bindparam("number"),
}
"""Notes a change of more than a Worker's load."""


async def touch(connection: AsyncConnection, worker_ids: Collection[WorkerId]) -> None:
    """Note that these Workers have changed."""
    if not worker_ids:
        return
    number = await counters.advance(connection, Counter.MESH_CHANGE)
    changed = {NAMES: listed(connection, worker_ids), "number": number}
    await connection.execute(_touching(connection.dialect.name), changed)


@cache
def _touching(dialect: str) -> Update:
    own = among_names(dialect, workers.c.id)
    return update(workers).where(own).values(NUMBERED)
