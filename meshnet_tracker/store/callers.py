"""What Workers ask the database for in passing, as many in one transaction as came in a moment."""

from collections.abc import Sequence

from sqlalchemy.ext.asyncio import AsyncConnection

from meshnet_common.ids import WorkerId
from meshnet_common.protocol.messages import Directive, DirectiveState
from meshnet_tracker.records import Joining, Poll, PollFound, Reported, Reporting
from meshnet_tracker.store import counters, directives, news, reports, workers
from meshnet_tracker.store.counters import Counter
from meshnet_tracker.store.directives import OPEN_STATES
from meshnet_tracker.store.transactions import Transactions

Caller = tuple[WorkerId, str]
"""A Worker, and the hash of the token that it shows."""


class Callers:
    """Every method is one transaction for all of its callers, who are answered in their order."""

    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions

    async def register(self, joining: Sequence[Joining], now: float) -> None:
        """Take in Workers; of two registrations of one Worker the last counts."""
        await self._transactions.write_all(lambda connection: _register(connection, joining, now))

    async def leave(self, callers: Sequence[Caller], now: float) -> tuple[bool, ...]:
        """Let those go that show their token; answers who did."""
        return await self._transactions.write_all(
            lambda connection: _leave(connection, callers, now)
        )

    async def report(
        self, reporting: Sequence[Reporting], new_deadline: float, now: float
    ) -> tuple[Reported, ...]:
        """Take what Workers say about their directives."""
        return await self._transactions.write_all(
            lambda connection: _report(connection, reporting, new_deadline, now)
        )

    async def know(self, callers: Sequence[Caller]) -> tuple[bool, ...]:
        """Tell who is registered with that token."""
        return await self._transactions.read_all(lambda connection: _know(connection, callers))

    async def poll(self, polls: Sequence[Poll]) -> tuple[PollFound, ...]:
        """Read the open directives of Workers above what they have seen."""
        return await self._transactions.read_all(lambda connection: _poll(connection, polls))


async def _register(connection: AsyncConnection, joining: Sequence[Joining], now: float) -> None:
    await workers.register(connection, joining, now)
    await news.tell(connection)


async def _leave(
    connection: AsyncConnection, callers: Sequence[Caller], now: float
) -> tuple[bool, ...]:
    known = await _know(connection, callers)
    going = {caller[0] for caller, is_known in zip(callers, known, strict=True) if is_known}
    if going:
        await workers.leave(connection, going, now)
        await news.tell(connection)
    return known


async def _report(
    connection: AsyncConnection, reporting: Sequence[Reporting], new_deadline: float, now: float
) -> tuple[Reported, ...]:
    known = await _know(connection, [(each.worker_id, each.token_sha256) for each in reporting])
    waiting = [index for index, is_known in enumerate(known) if is_known]
    states: dict[int, DirectiveState | None] = {}
    while waiting:
        # One report of each Worker, since what it says next builds on that.
        turn = {reporting[index].worker_id: index for index in reversed(waiting)}
        said = [reporting[index] for index in turn.values()]
        found = await reports.record(connection, said, new_deadline, now)
        states.update(zip(turn.values(), found, strict=True))
        waiting = [index for index in waiting if index not in states]
    if any(state is not None and state not in OPEN_STATES for state in states.values()):
        await news.tell(connection)
    return tuple(Reported(is_known, states.get(i)) for i, is_known in enumerate(known))


async def _know(connection: AsyncConnection, callers: Sequence[Caller]) -> tuple[bool, ...]:
    strange = await workers.strangers(connection, callers)
    return tuple(caller not in strange for caller in callers)


async def _poll(connection: AsyncConnection, polls: Sequence[Poll]) -> tuple[PollFound, ...]:
    callers = {(poll.worker_id, poll.token_sha256) for poll in polls}
    strange = await workers.strangers(connection, callers)
    opened = await directives.open_among(connection, {poll.worker_id for poll in polls})
    newest = await counters.read(connection, Counter.DIRECTIVE_EPOCH)

    def above(poll: Poll) -> tuple[Directive, ...]:
        orders = [order.directive for order in opened.get(poll.worker_id, ())]
        return tuple(directive for directive in orders if directive.epoch > poll.epoch)

    return tuple(
        PollFound(
            is_known=(poll.worker_id, poll.token_sha256) not in strange,
            is_ahead=poll.epoch > newest,
            directives=above(poll),
        )
        for poll in polls
    )
