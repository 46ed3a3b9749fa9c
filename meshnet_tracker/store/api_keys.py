"""The API keys of this Mesh: only their hashes, what each may use, and how busy each is.

A rate is kept as the instant until which a key is busy (the generic cell rate algorithm, ITU-T
I.371): one number a key, right for all Trackers at once, and moved by one statement.
"""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Case, Column, case, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from meshnet_tracker.key_rules import FITTING_SHARE, WINDOW_SECONDS, ApiKey, Pace, Taken
from meshnet_tracker.store import news
from meshnet_tracker.store.errors import ApiKeyError
from meshnet_tracker.store.schema import api_keys
from meshnet_tracker.store.transactions import Transactions

_BUSY: Mapping[str, Column[float]] = {
    "requests": api_keys.c.busy_until,
    "tokens": api_keys.c.tokens_busy_until,
}


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

    async def take(self, key: ApiKey, now: float) -> Taken:
        """Count one request of a key with limits, if it is within all; tell how busy the key is.

        What it will cost of a limit of tokens is not known yet, so one is enough to begin. Raises
        ApiKeyError for a key that has gone.
        """
        steps = {
            _BUSY[kind]: WINDOW_SECONDS / limit
            for kind, limit in (
                ("requests", key.requests_per_minute),
                ("tokens", key.tokens_per_minute),
            )
            if limit is not None
        }
        is_own = (api_keys.c.name == key.name, api_keys.c.revoked_at.is_(None))
        fit = [_begins(column, now) + step * FITTING_SHARE for column, step in steps.items()]

        async def take(connection: AsyncConnection) -> Taken:
            busy_until = _BUSY["requests"]
            counted = _begins(busy_until, now) + steps.get(busy_until, 0.0)
            statement = (
                update(api_keys)
                .where(*is_own, *(end <= now + WINDOW_SECONDS for end in fit))
                .values(busy_until=counted)
                .returning(*_BUSY.values())
            )
            row = (await connection.execute(statement)).mappings().one_or_none()
            is_counted = row is not None
            if row is None:
                query = select(*_BUSY.values()).where(*is_own)
                row = (await connection.execute(query)).mappings().one_or_none()
            if row is None:
                raise ApiKeyError(f"The key {key.name} was revoked.")
            paces = (
                Pace(row[column.name], now, steps[column], kind)
                for kind, column in _BUSY.items()
                if column in steps
            )
            return Taken(tuple(paces), is_counted)

        return await self._transactions.write_rows(take)

    async def spend(self, tokens: Mapping[str, int], now: float) -> None:
        """Add the tokens that answers have cost to what keys of these names have used.

        A limit may be passed by that, and is made up for by what waits longer then.
        """
        column = _BUSY["tokens"]
        async with self._transactions.write() as connection:
            for name, spent in sorted(tokens.items()):
                seconds = WINDOW_SECONDS * spent / api_keys.c.tokens_per_minute
                statement = (
                    update(api_keys)
                    .where(api_keys.c.name == name, api_keys.c.tokens_per_minute.is_not(None))
                    .values(tokens_busy_until=_begins(column, now) + seconds)
                )
                await connection.execute(statement)


def _begins(busy_until: Column[float], now: float) -> Case[float]:
    return case((busy_until > now, busy_until), else_=now)


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
        tokens_per_minute=row["tokens_per_minute"],
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
        "tokens_per_minute": key.tokens_per_minute,
        "created_at": key.created_at,
        "expires_at": key.expires_at,
        "revoked_at": key.revoked_at,
        "busy_until": 0.0,
        "tokens_busy_until": 0.0,
    }
