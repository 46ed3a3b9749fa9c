"""What only Operators want to know of the database: what happened lately, and how it is itself."""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import ColumnElement, case, func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from meshnet_common.protocol.messages import DirectiveState
from meshnet_tracker.records import DirectiveRecord, DirectiveTally
from meshnet_tracker.store import migrate, news
from meshnet_tracker.store.directives import OPEN_STATES, directive_of
from meshnet_tracker.store.schema import directives, workers
from meshnet_tracker.store.transactions import Transactions

CLOSED_STATES = tuple(state for state in DirectiveState if state not in OPEN_STATES)


class Operations:
    """Reads for Operators; every method is one transaction."""

    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions

    async def open_directives(self) -> tuple[DirectiveRecord, ...]:
        """Read what is not finished, by rising epoch."""
        async with self._transactions.read() as connection:
            return await _read(connection, directives.c.state.in_(OPEN_STATES))

    async def tally_directives(self) -> tuple[DirectiveTally, ...]:
        """Count what is not finished, by kind, reason and state."""
        columns = (directives.c.kind, directives.c.reason, directives.c.state)
        query = (
            select(*columns, func.count(), func.min(directives.c.issued_at))
            .where(directives.c.state.in_(OPEN_STATES))
            .group_by(*columns)
            .order_by(*columns)
        )
        async with self._transactions.read() as connection:
            return tuple(DirectiveTally(*row) for row in await connection.execute(query))

    async def closed_directives(
        self, after: float, until: float, limit: int = 10_000
    ) -> tuple[DirectiveRecord, ...]:
        """Read what was closed after one instant, and until the other; the newest, if too many."""
        between = (directives.c.updated_at > after) & (directives.c.updated_at <= until)
        is_closed = directives.c.state.in_(CLOSED_STATES) & between
        async with self._transactions.read() as connection:
            return await _read(connection, is_closed, limit)

    async def worker_states(self) -> dict[str, int]:
        """Count Workers by what they are: joining, live, leaving, lost."""
        state = case(
            (workers.c.lost_at.is_not(None), "lost"),
            (workers.c.leaving, "leaving"),
            (workers.c.heard, "live"),
            else_="joining",
        ).label("state")
        query = select(state, func.count()).where(~workers.c.gone).group_by(state)
        async with self._transactions.read() as connection:
            rows = await connection.execute(query)
            return {row[0]: row[1] for row in rows}

    async def tell(self) -> None:
        """Have all Trackers look at the Mesh anew."""
        async with self._transactions.write() as connection:
            await news.tell(connection)

    async def schema_revision(self) -> str:
        """Name the schema's revision; raises SchemaError unless it is this release's."""
        async with self._transactions.read() as connection:
            await connection.run_sync(migrate.check_schema)
        return migrate.head_revision()


async def _read(
    connection: AsyncConnection, condition: ColumnElement[bool], limit: int | None = None
) -> tuple[DirectiveRecord, ...]:
    query = select(directives).where(condition).order_by(directives.c.epoch.desc()).limit(limit)
    rows = (await connection.execute(query)).mappings().all()
    return tuple(_record(row) for row in reversed(rows))


def _record(row: Mapping[Any, Any]) -> DirectiveRecord:
    return DirectiveRecord(
        worker_id=row["worker_id"],
        directive=directive_of(row),
        state=DirectiveState(row["state"]),
        detail=row["detail"],
        why=row["why"],
        issued_at=row["issued_at"],
        updated_at=row["updated_at"],
        bytes_done=row["bytes_done"],
        bytes_total=row["bytes_total"],
    )
