"""The keys that sign Route Tickets, one of them at a time; raw bytes, no cryptography here."""

from collections.abc import Collection

from sqlalchemy import delete, insert, select
from sqlalchemy.ext.asyncio import AsyncConnection

from meshnet_tracker.records import SigningKey
from meshnet_tracker.store.schema import signing_keys
from meshnet_tracker.store.sets import among

LEAST_SECONDS_BETWEEN = 0.001
"""By their age keys are told apart, also where the clock of who makes one is behind."""


async def load_all(connection: AsyncConnection) -> tuple[SigningKey, ...]:
    """Read all keys, the newest first, which is the one that signs."""
    query = select(signing_keys).order_by(signing_keys.c.created_at.desc(), signing_keys.c.key_id)
    return tuple(
        SigningKey(row["key_id"], row["private_key"], row["created_at"])
        for row in (await connection.execute(query)).mappings()
    )


async def add(connection: AsyncConnection, key: SigningKey) -> None:
    """Add a key as the newest one."""
    known = await load_all(connection)
    after = known[0].created_at + LEAST_SECONDS_BETWEEN if known else key.created_at
    values = {
        "key_id": key.key_id,
        "private_key": key.secret,
        "created_at": max(key.created_at, after),
    }
    await connection.execute(insert(signing_keys).values(values))


async def forget(connection: AsyncConnection, key_ids: Collection[str]) -> None:
    """Delete these keys; their tickets verify no more."""
    await connection.execute(
        delete(signing_keys).where(among(connection, signing_keys.c.key_id, key_ids))
    )
