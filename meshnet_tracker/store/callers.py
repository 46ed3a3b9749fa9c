"""What Workers ask the database for in passing, as many in one transaction as came in a moment."""

from collections.abc import Sequence

from sqlalchemy.ext.asyncio import AsyncConnection

from meshnet_common.ids import WorkerId
from meshnet_common.protocol.messages import Directive
from meshnet_tracker.records import Joining, Poll, PollFound
from meshnet_tracker.store import counters, directives, news, workers
from meshnet_tracker.store.counters import Counter
from meshnet_tracker.store.transactions import Transactions


class Callers:
    """Every method is one transaction for all of its callers, who are answered in their order."""

    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions

    async def register(self, joining: Sequence[Joining], now: float) -> None:
        """Take in Workers; of two registrations of one Worker the last counts."""
        async with self._transactions.write() as connection:
            await workers.register(connection, joining, now)
            await news.tell(connection)

    async def leave(self, callers: Sequence[tuple[WorkerId, str]], now: float) -> tuple[bool, ...]:
        """Let those go that show their token; answers who did."""
        async with self._transactions.write() as connection:
            strange = await workers.strangers(connection, callers)
            going = {caller[0] for caller in callers if caller not in strange}
            if going:
                await workers.leave(connection, going, now)
                await news.tell(connection)
            return tuple(caller not in strange for caller in callers)

    async def know(self, callers: Sequence[tuple[WorkerId, str]]) -> tuple[bool, ...]:
        """Tell who is registered with that token."""
        async with self._transactions.read() as connection:
            strange = await workers.strangers(connection, callers)
            return tuple(caller not in strange for caller in callers)

    async def poll(self, polls: Sequence[Poll]) -> tuple[PollFound, ...]:
        """Read the open directives of Workers above what they have seen."""
        async with self._transactions.read() as connection:
            return await _poll(connection, polls)


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
