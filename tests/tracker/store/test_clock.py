from meshnet_common.edge.clock import SystemClock
from meshnet_tracker.store.store import Store


async def test_the_database_tells_seconds_since_the_epoch(store: Store) -> None:
    before = SystemClock().now()
    now = await store.clock.now()
    # On one machine it is the machine's clock; SQLite tells milliseconds.
    assert before - 0.002 <= now <= SystemClock().now() + 0.002
