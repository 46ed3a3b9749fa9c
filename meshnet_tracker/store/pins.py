"""What an Operator decides about single Workers: pins, and who is to be drained.

Both outlive the Worker's absence. Running Trackers hear of a change as of one of the presets.
"""

from sqlalchemy import delete, insert, select
from sqlalchemy.ext.asyncio import AsyncConnection

from meshnet_common.ids import WorkerId
from meshnet_common.shard_range import ShardRange
from meshnet_tracker.planning.snapshot import Pin, VariantKey
from meshnet_tracker.store import counters, news
from meshnet_tracker.store.counters import Counter
from meshnet_tracker.store.errors import PinError
from meshnet_tracker.store.schema import drains, pins, variants
from meshnet_tracker.store.transactions import Transactions
from meshnet_tracker.worker_rules import PLAIN_ID_RULE, is_plain_id


async def load_pins(connection: AsyncConnection) -> tuple[Pin, ...]:
    """Read all pins, by Worker."""
    rows = (await connection.execute(select(pins))).mappings()
    return tuple(
        sorted(
            Pin(
                worker_id=WorkerId(row["worker_id"]),
                variant=VariantKey(row["model"], row["quantization"]),
                shard_range=ShardRange(row["start_layer"], row["end_layer"]),
            )
            for row in rows
        )
    )


async def load_drained(connection: AsyncConnection) -> frozenset[WorkerId]:
    """Name the Workers that are to be empty."""
    return frozenset((await connection.execute(select(drains.c.worker_id))).scalars())


class Pins:
    """The pins of this Mesh; every method is one transaction."""

    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions

    async def all(self) -> tuple[Pin, ...]:
        async with self._transactions.read() as connection:
            return await load_pins(connection)

    async def set(self, pin: Pin, now: float) -> None:
        """Pin a Worker, instead of an earlier pin to the same Variant; raises PinError."""
        _check_id(pin.worker_id)
        async with self._transactions.write() as connection:
            await counters.advance(connection, Counter.PRESET_VERSION)
            await news.tell(connection)
            await _check_range(connection, pin)
            await _remove_pin(connection, pin.worker_id, pin.variant)
            values = {
                "worker_id": pin.worker_id,
                "model": pin.variant.model,
                "quantization": pin.variant.quantization,
                "start_layer": pin.shard_range.start,
                "end_layer": pin.shard_range.end,
                "added_at": now,
            }
            await connection.execute(insert(pins).values(**values))

    async def remove(self, worker_id: WorkerId, variant: VariantKey | None = None) -> int:
        """Let a Worker go, from one Variant or from all; answers how many pins it had."""
        if not is_plain_id(worker_id):
            return 0
        async with self._transactions.write() as connection:
            await counters.advance(connection, Counter.PRESET_VERSION)
            await news.tell(connection)
            return await _remove_pin(connection, worker_id, variant)


class Drains:
    """The Workers that an Operator wants empty; every method is one transaction."""

    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions

    async def all(self) -> frozenset[WorkerId]:
        async with self._transactions.read() as connection:
            return await load_drained(connection)

    async def set(self, worker_id: WorkerId, now: float) -> None:
        """Have a Worker empty itself; raises PinError."""
        _check_id(worker_id)
        async with self._transactions.write() as connection:
            await counters.advance(connection, Counter.PRESET_VERSION)
            await news.tell(connection)
            await connection.execute(delete(drains).where(drains.c.worker_id == worker_id))
            values = {"worker_id": worker_id, "added_at": now}
            await connection.execute(insert(drains).values(**values))

    async def remove(self, worker_id: WorkerId) -> bool:
        """Let a Worker serve again; answers whether it was to be drained."""
        if not is_plain_id(worker_id):
            return False
        async with self._transactions.write() as connection:
            await counters.advance(connection, Counter.PRESET_VERSION)
            await news.tell(connection)
            found = await connection.execute(delete(drains).where(drains.c.worker_id == worker_id))
            return bool(found.rowcount)


def _check_id(worker_id: WorkerId) -> None:
    if not is_plain_id(worker_id):
        raise PinError(f"No worker can be called {worker_id!r}: {PLAIN_ID_RULE}.")


async def _check_range(connection: AsyncConnection, pin: Pin) -> None:
    query = (
        select(variants.c.layer_bytes)
        .where(variants.c.preset == pin.variant.model)
        .where(variants.c.quantization == pin.variant.quantization, variants.c.served)
    )
    layer_bytes: list[int] | None = (await connection.execute(query)).scalar()
    if layer_bytes is None:
        raise PinError(
            f"{pin.variant.model} is not served as {pin.variant.quantization}. "
            "`meshnet-tracker preset list` shows what is."
        )
    if pin.shard_range.end > len(layer_bytes):
        raise PinError(f"{pin.variant.model} has layers 0 to {len(layer_bytes) - 1} only.")


async def _remove_pin(
    connection: AsyncConnection, worker_id: WorkerId, variant: VariantKey | None
) -> int:
    statement = delete(pins).where(pins.c.worker_id == worker_id)
    if variant is not None:
        statement = statement.where(pins.c.model == variant.model)
        statement = statement.where(pins.c.quantization == variant.quantization)
    return (await connection.execute(statement)).rowcount
