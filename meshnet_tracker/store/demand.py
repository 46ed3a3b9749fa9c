"""How much each Variant is asked for, added up over all Trackers: a count that fades away.

Of a steady stream of requests the count comes to rest at so many as came in the half-life, divided
by the logarithm of 2; that gives requests per second.
"""

import math
from collections.abc import Mapping
from typing import Any

from sqlalchemy import delete, insert, select
from sqlalchemy.ext.asyncio import AsyncConnection

from meshnet_tracker.planning.snapshot import Demand, VariantKey
from meshnet_tracker.store import clock
from meshnet_tracker.store.schema import demand
from meshnet_tracker.store.transactions import Transactions

HALF_LIFE_SECONDS = 120.0
LEAST_REQUESTS = 0.01
"""A count that has faded to this is forgotten."""


class Demands:
    """Counts requests and tells how many there are; every method is one transaction."""

    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions

    async def add(self, counted: Mapping[VariantKey, int], now: float) -> None:
        """Add requests to what has been counted before."""
        if not counted:
            return
        await self._transactions.write_all(lambda connection: _add(connection, counted, now))

    async def at(self, now: float) -> tuple[Demand, ...]:
        """Tell how much each Variant is asked for at an instant."""
        async with self._transactions.read() as connection:
            return await _rates(connection, now)


async def load(connection: AsyncConnection) -> tuple[Demand, ...]:
    """Tell how much each Variant is asked for now, by Variant."""
    return await _rates(connection, await clock.read(connection))


async def _add(connection: AsyncConnection, counted: Mapping[VariantKey, int], now: float) -> None:
    known = await _load(connection, now)
    for key, requests in counted.items():
        known[key] = known.get(key, 0.0) + requests
    await connection.execute(delete(demand))
    kept = {key: known[key] for key in sorted(known) if known[key] > LEAST_REQUESTS}
    if kept:
        await connection.execute(insert(demand), [_row(*pair, now) for pair in kept.items()])


async def _rates(connection: AsyncConnection, now: float) -> tuple[Demand, ...]:
    known = await _load(connection, now)
    per_second = math.log(2) / HALF_LIFE_SECONDS
    return tuple(
        Demand(key, float(f"{known[key] * per_second:.2g}"))
        for key in sorted(known)
        if known[key] > LEAST_REQUESTS
    )


async def _load(connection: AsyncConnection, now: float) -> dict[VariantKey, float]:
    rows = (await connection.execute(select(demand))).mappings()
    return {VariantKey(row["model"], row["quantization"]): _faded(row, now) for row in rows}


def _faded(row: Mapping[Any, Any], now: float) -> float:
    age_seconds: float = max(0.0, now - row["updated_at"])
    requests: float = row["requests"]
    return requests * math.pow(0.5, age_seconds / HALF_LIFE_SECONDS)


def _row(key: VariantKey, requests: float, now: float) -> dict[str, Any]:
    return {
        "model": key.model,
        "quantization": key.quantization,
        "requests": requests,
        "updated_at": now,
    }
