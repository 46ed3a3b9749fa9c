"""Workers that fell silent: who is late, who of them is lost, and who answered after all.

Only the Tracker that plans marks Workers as lost, so that one clock and one patience decide.
"""

from collections.abc import Collection

from sqlalchemy import ColumnElement, func, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from meshnet_common.ids import WorkerId
from meshnet_tracker.records import LateWorkers, Term, WorkerPlace
from meshnet_tracker.store import directives, leadership, news
from meshnet_tracker.store import workers as worker_rows
from meshnet_tracker.store.schema import workers
from meshnet_tracker.store.sets import among
from meshnet_tracker.store.transactions import Transactions

MOST_AT_ONCE = 100
"""Marked in one transaction, so that other writers do not wait for long."""


class Losses:
    """Finds late Workers and marks the lost ones."""

    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions

    async def late(self, seen_before: float) -> LateWorkers:
        """Name the Workers not seen since then that are not lost yet, and count all live ones."""
        place = select(workers.c.id, workers.c.url, workers.c.registered_at)
        query = place.where(_is_late(seen_before)).order_by(workers.c.id)
        counting = select(func.count()).select_from(workers).where(workers.c.lost_at.is_(None))

        async def work(connection: AsyncConnection) -> LateWorkers:
            places = tuple(WorkerPlace(*row) for row in await connection.execute(query))
            live = (await connection.execute(counting)).scalar_one() if places else 0
            return LateWorkers(places, live)

        return await self._transactions.read_all(work)

    async def mark(
        self, worker_ids: Collection[WorkerId], seen_before: float, now: float, term: Term
    ) -> tuple[WorkerId, ...]:
        """Mark those of these Workers as lost that are still late; answers which.

        Raises StaleTermError.
        """
        ordered = sorted(worker_ids)
        lost: list[WorkerId] = []
        for first in range(0, len(ordered), MOST_AT_ONCE):
            some = ordered[first : first + MOST_AT_ONCE]
            lost.extend(await self._mark_some(some, seen_before, now, term))
        return tuple(lost)

    async def places(self, worker_ids: Collection[WorkerId]) -> tuple[WorkerPlace, ...]:
        """Say where those of these Workers that are not lost can be reached."""
        async with self._transactions.read() as connection:
            return await worker_rows.places(connection, worker_ids)

    async def mark_unreachable(self, place: WorkerPlace, now: float) -> bool:
        """Mark a Worker as lost, unless it has registered again; answers whether it was not yet.

        Any Tracker may that could not reach it itself.
        """
        async with self._transactions.write() as connection:
            is_lost = await worker_rows.mark_unreachable(connection, place, now)
            if is_lost:
                await news.tell(connection)
            return is_lost

    async def note_alive(self, worker_ids: Collection[WorkerId], now: float) -> None:
        """Take an answer for a heartbeat."""

        async def work(connection: AsyncConnection) -> None:
            seen = update(workers).where(among(connection, workers.c.id, worker_ids))
            await connection.execute(seen.values(seen_at=now))

        await self._transactions.write_all(work)

    async def sweep(self, now: float) -> None:
        """Forget Workers that were lost or left long ago, and what was closed long ago."""

        async def work(connection: AsyncConnection) -> None:
            await worker_rows.sweep(connection, now)
            await directives.sweep(connection, now)

        await self._transactions.write_all(work)

    async def _mark_some(
        self, worker_ids: Collection[WorkerId], seen_before: float, now: float, term: Term
    ) -> tuple[WorkerId, ...]:
        async def work(connection: AsyncConnection) -> tuple[WorkerId, ...]:
            await leadership.check(connection, term)
            own = among(connection, workers.c.id, worker_ids)
            query = select(workers.c.id).where(_is_late(seen_before), own)
            lost = tuple((await connection.execute(query.order_by(workers.c.id))).scalars())
            await worker_rows.lose(connection, lost, now)
            if lost:
                await news.tell(connection)
            return lost

        return await self._transactions.write_all(work)


def _is_late(seen_before: float) -> ColumnElement[bool]:
    return workers.c.lost_at.is_(None) & (workers.c.seen_at < seen_before)
