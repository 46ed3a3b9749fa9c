"""Public names that stand for other public names: how a new version of a model is cut over to.

An Alias goes before a model of the same name, so that also a name that clients know already can be
cut over. Its target is always a model's own name, never another Alias.
"""

from sqlalchemy import delete, insert, select
from sqlalchemy.ext.asyncio import AsyncConnection

from meshnet_tracker.models import NameBook
from meshnet_tracker.records import AliasRecord
from meshnet_tracker.store import counters, news, presets
from meshnet_tracker.store.counters import Counter
from meshnet_tracker.store.errors import AliasError
from meshnet_tracker.store.schema import aliases
from meshnet_tracker.store.schema import presets as presets_table
from meshnet_tracker.store.transactions import Transactions

MAX_NAME_CHARACTERS = 200


class Aliases:
    """The Aliases of this Mesh; every method is one transaction."""

    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions

    async def all(self) -> tuple[AliasRecord, ...]:
        """Read all Aliases, by name."""
        async with self._transactions.read() as connection:
            return await _load_all(connection)

    async def book(self) -> NameBook:
        """Read what all public names mean at one instant."""
        query = select(presets_table.c.name).where(presets_table.c.canary)

        async def work(connection: AsyncConnection) -> NameBook:
            records = await _load_all(connection)
            canaries = frozenset((await connection.execute(query)).scalars())
            # What stands for itself is itself: else a rollback would make a Canary public.
            others = {each.name: each.target for each in records if each.name != each.target}
            return NameBook(others, canaries)

        return await self._transactions.read_all(work)

    async def set(self, name: str, target: str, now: float) -> AliasRecord:
        """Let a name stand for a model from now on; raises AliasError.

        What it stood for before is kept for `roll_back`; that may be the model of this very name.
        """
        _check_name(name)
        async with self._transactions.write() as connection:
            # Whoever changes names holds this row, so two cut-overs come one after the other.
            await counters.advance(connection, Counter.PRESET_VERSION)
            await news.tell(connection)
            own_names = await _served_names(connection)
            _check_target(target, own_names)
            await _check_canary(connection, name, target)
            known = await _find(connection, name)
            prior = known.prior if known else None
            if known is not None and known.target != target:
                prior = known.target
            elif known is None and name in own_names:
                prior = name
            record = AliasRecord(name, target, prior, now)
            await _replace(connection, record)
            return record

    async def roll_back(self, name: str, now: float) -> AliasRecord:
        """Let a name stand for what it stood for before; twice is as if nothing was done.

        Raises AliasError when there is nothing to go back to, or it is served no more.
        """
        _check_name(name)
        async with self._transactions.write() as connection:
            await counters.advance(connection, Counter.PRESET_VERSION)
            await news.tell(connection)
            known = await _find(connection, name)
            if known is None or known.prior is None:
                raise AliasError(f"There was nothing before under the name {name}.")
            if known.prior not in await _served_names(connection):
                raise AliasError(f"{known.prior}, which it stood for before, is served no more.")
            record = AliasRecord(name, known.prior, known.target, now)
            await _replace(connection, record)
            return record

    async def remove(self, name: str) -> None:
        """Forget an Alias; raises AliasError if there is none."""
        _check_name(name)
        async with self._transactions.write() as connection:
            await counters.advance(connection, Counter.PRESET_VERSION)
            await news.tell(connection)
            found = await connection.execute(delete(aliases).where(aliases.c.name == name))
            if not found.rowcount:
                raise AliasError(f"There is no alias {name}.")


async def _load_all(connection: AsyncConnection) -> tuple[AliasRecord, ...]:
    rows = await connection.execute(select(aliases).order_by(aliases.c.name))
    return tuple(AliasRecord(**row) for row in rows.mappings())


def _check_name(name: str) -> None:
    if not name.strip() or not name.isprintable() or len(name) > MAX_NAME_CHARACTERS:
        raise AliasError(f"A name has 1 to {MAX_NAME_CHARACTERS} printable characters.")


def _check_target(target: str, own_names: set[str]) -> None:
    if target not in own_names:
        advice = "`meshnet-tracker preset list` shows all models."
        raise AliasError(f"No model is served under its own name {target}. {advice}")


async def _check_canary(connection: AsyncConnection, name: str, target: str) -> None:
    canaries = [record for record in await presets.load_all(connection) if record.is_canary]
    if name == target and name in presets.public_names(tuple(canaries)):
        raise AliasError(
            f"{name} is a Canary and stays one under its own name. Let another name stand for it, "
            "or add it anew without --canary."
        )


async def _served_names(connection: AsyncConnection) -> set[str]:
    return {
        record.preset.public_name(variant.quantization)
        for record in await presets.load_all(connection)
        for variant in record.preset.variants
    }


async def _find(connection: AsyncConnection, name: str) -> AliasRecord | None:
    query = select(aliases).where(aliases.c.name == name)
    row = (await connection.execute(query)).mappings().first()
    return None if row is None else AliasRecord(**row)


async def _replace(connection: AsyncConnection, record: AliasRecord) -> None:
    await connection.execute(delete(aliases).where(aliases.c.name == record.name))
    values = {
        "name": record.name,
        "target": record.target,
        "prior": record.prior,
        "changed_at": record.changed_at,
    }
    await connection.execute(insert(aliases).values(**values))
