"""Which Tracker plans: one row with a holder, a term and an end, by the database's clock.

The row alone is no protection: whoever held it may sleep and wake up late. So whatever is decided
under a term is written in one transaction with `check`, which locks the row: no other Tracker can
take over between the check and the commit.
"""

from collections.abc import Mapping

from sqlalchemy import case, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection

from meshnet_tracker.records import Term
from meshnet_tracker.store import news
from meshnet_tracker.store.clock import database_now
from meshnet_tracker.store.errors import StaleTermError
from meshnet_tracker.store.schema import leadership
from meshnet_tracker.store.transactions import Transactions

PLANNING = "planner"
"""The only role that there is."""

LEASE_SECONDS = 6.0


async def check(connection: AsyncConnection, term: Term) -> None:
    """Raise StaleTermError unless this is still the term, until the transaction ends."""
    query = select(leadership.c.holder, leadership.c.term).where(leadership.c.role == PLANNING)
    row = (await connection.execute(query.with_for_update(read=True))).one_or_none()
    if row is None or (row.holder, row.term) != (term.holder, term.number):
        now_held = "nobody's" if row is None else str(row.term)
        raise StaleTermError(f"Its term is {term.number}, now it is {now_held}.")


class Leadership:
    """Takes, keeps and gives away the right to plan; each method is one statement."""

    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions

    async def take(
        self, holder: str, lease_seconds: float = LEASE_SECONDS, failing_since: float = 0.0
    ) -> Term | None:
        """Take what is free or has run out, or keep what one has; None while another has it.

        The term stays the same for as long as nobody else takes over.
        """
        values = {"role": PLANNING, "holder": holder, "term": 1, "failing_since": failing_since}
        dialects: Mapping[bool, type[sqlite.Insert | postgresql.Insert]]
        dialects = {True: sqlite.Insert, False: postgresql.Insert}
        adding = dialects[self._transactions.is_sqlite](leadership).values(
            **values, expires_at=database_now() + lease_seconds
        )
        offered = adding.excluded
        is_own = leadership.c.holder == offered.holder
        taking = adding.on_conflict_do_update(
            index_elements=[leadership.c.role],
            set_={
                "holder": offered.holder,
                "term": case((is_own, leadership.c.term), else_=leadership.c.term + 1),
                "expires_at": offered.expires_at,
                "failing_since": offered.failing_since,
            },
            where=is_own | (leadership.c.expires_at <= database_now()),
        ).returning(leadership.c.term, leadership.c.expires_at)

        async def work(connection: AsyncConnection) -> Term | None:
            row = (await connection.execute(taking)).one_or_none()
            return None if row is None else Term(holder, row.term, row.expires_at, failing_since)

        return await self._transactions.write_rows(work)

    async def hand_over(self, term: Term) -> None:
        """Let the next one who asks take over at once."""
        own = (leadership.c.holder == term.holder) & (leadership.c.term == term.number)
        ending = update(leadership).where(leadership.c.role == PLANNING, own).values(expires_at=0.0)

        async def work(connection: AsyncConnection) -> None:
            await connection.execute(ending)
            await news.tell(connection)

        await self._transactions.write_rows(work)

    async def current(self) -> Term | None:
        """Tell who plans now; None if nobody ever did, or the last one's lease has run out."""
        query = select(
            leadership.c.holder,
            leadership.c.term,
            leadership.c.expires_at,
            leadership.c.failing_since,
        ).where(leadership.c.role == PLANNING, leadership.c.expires_at > database_now())
        async with self._transactions.read() as connection:
            row = (await connection.execute(query)).one_or_none()
        return None if row is None else Term(*row)
