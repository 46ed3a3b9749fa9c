"""The key that signs Route Tickets, made once for a database; raw bytes, no cryptography here."""

from sqlalchemy import insert, select
from sqlalchemy.ext.asyncio import AsyncConnection

from meshnet_tracker.records import SigningKey
from meshnet_tracker.store.schema import signing_keys


async def first_or_add(connection: AsyncConnection, offered: SigningKey, now: float) -> SigningKey:
    """Return the newest key, or keep the offered one if there is none yet."""
    query = select(signing_keys).order_by(signing_keys.c.created_at.desc()).limit(1)
    row = (await connection.execute(query)).mappings().first()
    if row is not None:
        return SigningKey(row["key_id"], row["private_key"])
    values = {"key_id": offered.key_id, "private_key": offered.secret, "created_at": now}
    await connection.execute(insert(signing_keys).values(values))
    return offered
