"""How often each Session was opened again, so that no two incarnations of one are ever the same.

A row is there from the first renewal on. `head_since` is the incarnation that began with another
Head Worker; tickets of lower ones are in the hands of a Head Worker that is it no longer.
"""

from sqlalchemy import ColumnElement, delete, func, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from meshnet_tracker.store.schema import incarnations


async def head_since(connection: AsyncConnection, session_id: str) -> int:
    """Return the incarnation in which a Session's Head Worker became it; 0 is from the start."""
    query = select(incarnations.c.head_since).where(incarnations.c.session_id == session_id)
    return (await connection.execute(query)).scalar() or 0


async def take_next(
    connection: AsyncConnection, session_id: str, seen: int, now: float
) -> int | None:
    """Give the next incarnation to who has seen this one; None if its Head Worker is replaced."""
    if seen < await head_since(connection, session_id):
        return None
    return await _advance(connection, session_id, seen, now)


async def move_head(connection: AsyncConnection, session_id: str, seen: int, now: float) -> int:
    """Give the next incarnation to another Head Worker."""
    taken = await _advance(connection, session_id, seen, now)
    changed = update(incarnations).where(incarnations.c.session_id == session_id)
    await connection.execute(changed.values(head_since=taken))
    return taken


async def any_older(connection: AsyncConnection, before: float) -> bool:
    """Tell cheaply, without a writer's lock, whether `sweep` has something to do."""
    query = select(func.count()).select_from(incarnations)
    return bool((await connection.execute(query.where(_is_older(before)))).scalar_one())


async def sweep(connection: AsyncConnection, before: float) -> None:
    """Forget Sessions that were last renewed so long ago that they cannot be again."""
    await connection.execute(delete(incarnations).where(_is_older(before)))


async def _advance(connection: AsyncConnection, session_id: str, seen: int, now: float) -> int:
    own = incarnations.c.session_id == session_id
    known: int | None = (
        await connection.execute(select(incarnations.c.incarnation).where(own))
    ).scalar()
    taken = max(known or 0, seen) + 1
    values = {"incarnation": taken, "renewed_at": now}
    if known is None:
        fresh = {"session_id": session_id, "head_since": 0, **values}
        await connection.execute(insert(incarnations).values(fresh))
    else:
        await connection.execute(update(incarnations).where(own).values(values))
    return taken


def _is_older(before: float) -> ColumnElement[bool]:
    return incarnations.c.renewed_at < before
