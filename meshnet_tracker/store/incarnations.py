"""How often each Session was opened again, so that no two incarnations of one are ever the same.

A row is there from the first renewal on. `head_since` is the incarnation that began with another
Head Worker; tickets of lower ones are in the hands of a Head Worker that is it no longer.

A number is taken by one statement, which locks its row: also where other transactions run between
the statements of this one, as on PostgreSQL, nobody reads what somebody else is about to change.
"""

from collections.abc import Callable, Mapping
from typing import Any

from sqlalchemy import ColumnElement, Table, case, delete, func, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.sql.dml import ReturningInsert

from meshnet_tracker.records import Renewals
from meshnet_tracker.store.schema import incarnations

_Insert = sqlite.Insert | postgresql.Insert
_INSERTS: Mapping[str, Callable[[Table], _Insert]] = {
    "sqlite": sqlite.insert,
    "postgresql": postgresql.insert,
}


async def renewals(connection: AsyncConnection, session_id: str) -> Renewals:
    """Return what is known of a Session's renewals."""
    columns = incarnations.c.head_since, incarnations.c.renewed_at
    query = select(*columns).where(incarnations.c.session_id == session_id)
    row = (await connection.execute(query)).one_or_none()
    return Renewals() if row is None else Renewals(row.head_since, row.renewed_at)


async def take_next(
    connection: AsyncConnection, session_id: str, seen: int, now: float
) -> int | None:
    """Give the next incarnation to who has seen this one; None if its Head Worker is replaced."""
    statement = taking_next(connection.dialect.name, session_id, seen, now)
    taken: int | None = (await connection.execute(statement)).scalar_one_or_none()
    return taken


async def move_head(connection: AsyncConnection, session_id: str, seen: int, now: float) -> int:
    """Give the next incarnation to another Head Worker."""
    statement = moving_head(connection.dialect.name, session_id, seen, now)
    taken: int = (await connection.execute(statement)).scalar_one()
    return taken


async def any_older(connection: AsyncConnection, before: float) -> bool:
    """Tell cheaply, without a writer's lock, whether `sweep` has something to do."""
    query = select(func.count()).select_from(incarnations)
    return bool((await connection.execute(query.where(_is_older(before)))).scalar_one())


async def sweep(connection: AsyncConnection, before: float) -> None:
    """Forget Sessions that were last renewed so long ago that they cannot be again."""
    await connection.execute(delete(incarnations).where(_is_older(before)))


def taking_next(dialect: str, session_id: str, seen: int, now: float) -> ReturningInsert[Any]:
    """Write the statement of `take_next`; it returns no row to a Head Worker that was replaced."""
    fresh = {"session_id": session_id, "incarnation": seen + 1, "head_since": 0, "renewed_at": now}
    return _advancing(dialect, fresh, is_head_moved=False)


def moving_head(dialect: str, session_id: str, seen: int, now: float) -> ReturningInsert[Any]:
    """Write the statement of `move_head`."""
    begun = {"incarnation": seen + 1, "head_since": seen + 1}
    fresh = {"session_id": session_id, **begun, "renewed_at": now}
    return _advancing(dialect, fresh, is_head_moved=True)


def _advancing(
    dialect: str, fresh: Mapping[str, object], *, is_head_moved: bool
) -> ReturningInsert[Any]:
    adding = _INSERTS[dialect](incarnations).values(fresh)
    stored, offered = incarnations.c.incarnation, adding.excluded.incarnation
    taken = case((stored < offered, offered), else_=stored + 1)
    changes = {"incarnation": taken, "renewed_at": adding.excluded.renewed_at}
    if is_head_moved:
        advancing = adding.on_conflict_do_update(
            index_elements=[incarnations.c.session_id], set_={**changes, "head_since": taken}
        )
    else:
        advancing = adding.on_conflict_do_update(
            index_elements=[incarnations.c.session_id],
            set_=changes,
            where=incarnations.c.head_since < offered,
        )
    return advancing.returning(stored)


def _is_older(before: float) -> ColumnElement[bool]:
    return incarnations.c.renewed_at < before
