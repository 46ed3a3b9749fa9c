"""What the `keys` commands do: work on the database, say in lines what came of it.

A running Tracker needs no word of it: it looks for new keys once a second.
"""

from datetime import UTC, datetime

from meshnet_common.edge.clock import SystemClock
from meshnet_tracker.opening import open_store
from meshnet_tracker.settings import TrackerSettings
from meshnet_tracker.signing import fresh_key, live_keys, live_until


async def rotate_keys(database: str) -> list[str]:
    """Add a key that signs from now on; raises SchemaError, DatabaseUnavailableError."""
    fresh = fresh_key(SystemClock().now())
    async with open_store(database) as store:
        await store.add_signing_key(fresh)
    return [
        f"Key {fresh.key_id} signs from now on; running Trackers take it within seconds.",
        "What the older keys signed counts until its Sessions can be renewed no more.",
    ]


async def revoke_keys(database: str) -> list[str]:
    """Add a key that signs from now on, and forget the others; raises as `rotate_keys` does."""
    said, _ = await rotate_keys(database)
    async with open_store(database) as store:
        _, *older = await store.signing_keys()
        await store.forget_signing_keys([key.key_id for key in older])
    return [said, "Nothing counts that an older key signed: its Sessions are not renewed."]


async def list_keys(database: str) -> list[str]:
    """List the keys, newest first; raises SchemaError, DatabaseUnavailableError."""
    renewal_seconds = TrackerSettings().renewal_seconds
    async with open_store(database) as store:
        keys = live_keys(await store.signing_keys(), renewal_seconds, SystemClock().now())
    if not keys:
        return ["No keys yet. `meshnet-tracker serve` makes the first one."]
    newest, *older = keys
    ends = live_until(keys, renewal_seconds)[1:]
    return [
        f"{newest.key_id}  made {_day_and_time(newest.created_at)}  signs",
        *(
            f"{key.key_id}  made {_day_and_time(key.created_at)}  "
            f"verifies until {_day_and_time(end)}"
            for key, end in zip(older, ends, strict=True)
        ),
    ]


def _day_and_time(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S} UTC"
