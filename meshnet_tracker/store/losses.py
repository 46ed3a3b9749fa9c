"""Workers that fell silent: who is late, who of them is lost, and who answered after all.

Only the Tracker that plans marks Workers as lost for their silence, so that one clock and one
patience decide. Any Tracker may mark one that was reported and does not answer it, but never many
within a minute: then rather its own network is away, and silence decides.
"""

from collections.abc import Collection

from sqlalchemy import ColumnElement, func, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from meshnet_common.ids import WorkerId
from meshnet_tracker.loss_rules import is_mass_loss
from meshnet_tracker.records import LateWorkers, Term, WorkerPlace
from meshnet_tracker.store import directives, leadership, news
from meshnet_tracker.store import workers as worker_rows
from meshnet_tracker.store.schema import workers
from meshnet_tracker.store.sets import among
from meshnet_tracker.store.transactions import Transactions

TOGETHER_SECONDS = 60.0
"""Workers that were lost within that long count as lost at once."""

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
        """Mark a Worker as lost that does not answer; answers whether it was done.

        It is not when the Worker is lost already or has registered again, or when so many were lost
        within a minute that rather the network was.
        """

        async def work(connection: AsyncConnection) -> bool:
            if await _are_many_lost(connection, now):
                return False
            is_lost = await worker_rows.mark_unreachable(connection, place, now)
            if is_lost:
                await news.tell(connection)
            return is_lost

        return await self._transactions.write_all(work)

    async def witnesses(self, doubted: Collection[WorkerId], most: int) -> tuple[WorkerPlace, ...]:
        """Name others than these Workers that were heard of last, to see whether they answer."""

        async def work(connection: AsyncConnection) -> tuple[WorkerPlace, ...]:
            query = (
                select(workers.c.id, workers.c.url, workers.c.registered_at)
                .where(workers.c.heard, workers.c.lost_at.is_(None))
                .where(~among(connection, workers.c.id, doubted))
                .order_by(workers.c.seen_at.desc(), workers.c.id)
            )
            rows = await connection.execute(query.limit(most))
            return tuple(WorkerPlace(*row) for row in rows)

        return await self._transactions.read_all(work)

    async def note_alive(self, worker_ids: Collection[WorkerId], now: float) -> None:
        """Take an answer for a heartbeat."""

        async def work(connection: AsyncConnection) -> None:
            seen = update(workers).where(among(connection, workers.c.id, worker_ids))
            await connection.execute(seen.values(seen_at=now))

        await self._transactions.write_passing(work)

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


async def _are_many_lost(connection: AsyncConnection, now: float) -> bool:
    """Tell whether one more would be too many, of all Workers, within a minute."""
    is_live = workers.c.lost_at.is_(None)
    is_lost = ~workers.c.gone & (workers.c.lost_at > now - TOGETHER_SECONDS)
    counting = select(func.count()).select_from(workers)
    lost: int = (await connection.execute(counting.where(is_lost))).scalar_one()
    live: int = (await connection.execute(counting.where(is_live))).scalar_one()
    return is_mass_loss(lost + 1, lost + live)


def _is_late(seen_before: float) -> ColumnElement[bool]:
    return workers.c.lost_at.is_(None) & (workers.c.seen_at < seen_before)
