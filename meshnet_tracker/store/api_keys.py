"""The API keys of this Mesh: only their hashes, what each may use, and how busy each is.

A rate is kept as the instant until which a key is busy (the generic cell rate algorithm, ITU-T
I.371): one number a key, right for all Trackers at once, and moved by one statement.
"""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import case, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from meshnet_tracker.key_rules import FITTING_SHARE, WINDOW_SECONDS, ApiKey, Pace
from meshnet_tracker.store import news
from meshnet_tracker.store.errors import ApiKeyError
from meshnet_tracker.store.schema import api_keys
from meshnet_tracker.store.transactions import Transactions


class ApiKeys:
    """Who may ask for what; every method is one transaction."""

    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions

    async def all(self) -> tuple[ApiKey, ...]:
        """Read all keys by name, the revoked ones included."""
        return await self._transactions.read_all(_load)

    async def add(self, key: ApiKey) -> None:
        """Keep a new key; raises ApiKeyError if another one has its name."""
        async with self._transactions.write() as connection:
            await news.tell(connection)
            await _check_name(connection, key.name)
            await connection.execute(insert(api_keys).values(_row(key)))

    async def revoke(self, name: str, now: float) -> None:
        """Let a key open nothing any more; raises ApiKeyError if there is none of this name."""
        async with self._transactions.write() as connection:
            await news.tell(connection)
            statement = (
                update(api_keys)
                .where(api_keys.c.name == name, api_keys.c.revoked_at.is_(None))
                .values(revoked_at=now)
            )
            if not (await connection.execute(statement)).rowcount:
                advice = "`meshnet-tracker key list` shows all."
                raise ApiKeyError(f"There is no key {name} that could be revoked. {advice}")

    async def take(self, key: ApiKey, now: float) -> Pace:
        """Count one request of a key with a limit, if it is within that; tell how busy the key is.

        Raises ApiKeyError for a key that has gone.
        """
        assert key.requests_per_minute is not None
        step = WINDOW_SECONDS / key.requests_per_minute

        async def take(connection: AsyncConnection) -> Pace:
            busy_until = api_keys.c.busy_until
            begins = case((busy_until > now, busy_until), else_=now)
            statement = (
                update(api_keys)
                .where(api_keys.c.name == key.name, api_keys.c.revoked_at.is_(None))
                .where(begins + step * FITTING_SHARE <= now + WINDOW_SECONDS)
                .values(busy_until=begins + step)
                .returning(busy_until)
            )
            taken = (await connection.execute(statement)).scalar()
            if taken is not None:
                return Pace(taken, now, step, is_within=True)
            query = select(busy_until).where(
                api_keys.c.name == key.name, api_keys.c.revoked_at.is_(None)
            )
            busy = (await connection.execute(query)).scalar()
            if busy is None:
                raise ApiKeyError(f"The key {key.name} was revoked.")
            return Pace(busy, now, step, is_within=False)

        return await self._transactions.write_rows(take)


async def _load(connection: AsyncConnection) -> tuple[ApiKey, ...]:
    rows = (await connection.execute(select(api_keys).order_by(api_keys.c.name))).mappings()
    return tuple(_key(row) for row in rows)


async def _check_name(connection: AsyncConnection, name: str) -> None:
    query = select(api_keys.c.name).where(api_keys.c.name == name)
    if (await connection.execute(query)).scalar() is not None:
        advice = "Choose another name; one of a revoked key is not given again."
        raise ApiKeyError(f"There is a key {name} already. {advice}")


def _key(row: Mapping[Any, Any]) -> ApiKey:
    models = row["models"]
    return ApiKey(
        name=row["name"],
        sha256=row["key_sha256"],
        shown=row["shown"],
        models=None if models is None else frozenset(models),
        requests_per_minute=row["requests_per_minute"],
        created_at=row["created_at"],
        expires_at=row["expires_at"],
        revoked_at=row["revoked_at"],
    )


def _row(key: ApiKey) -> dict[str, Any]:
    return {
        "name": key.name,
        "key_sha256": key.sha256,
        "shown": key.shown,
        "models": None if key.models is None else sorted(key.models),
        "requests_per_minute": key.requests_per_minute,
        "created_at": key.created_at,
        "expires_at": key.expires_at,
        "revoked_at": key.revoked_at,
        "busy_until": 0.0,
    }
