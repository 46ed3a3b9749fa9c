"""The one class through which the Tracker remembers; every method is one transaction.

What is done inside a transaction lies in this room's other modules, which take the connection. Some
matters have a class of their own, which hangs on this one.
Everything a Tracker must not forget is written here, so that one can be killed at any time and
another goes on.
"""

from collections.abc import Collection, Sequence
from typing import Self

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from meshnet_common.ids import PresetName, WorkerId
from meshnet_common.presets import Variant
from meshnet_common.protocol.messages import CoverageRow, Directive
from meshnet_common.weights.manifest import Manifest
from meshnet_tracker.planning.snapshot import RebalanceDirective, VariantKey
from meshnet_tracker.records import (
    LoadedSnapshot,
    PresetRecord,
    Renewals,
    SigningKey,
    Term,
    WorkerRecord,
)
from meshnet_tracker.store import (
    counters,
    coverage,
    directives,
    incarnations,
    keys,
    leadership,
    migrate,
    news,
    presets,
    snapshots,
    worker_records,
)
from meshnet_tracker.store.aliases import Aliases
from meshnet_tracker.store.api_keys import ApiKeys
from meshnet_tracker.store.callers import Callers
from meshnet_tracker.store.changes import touch
from meshnet_tracker.store.clock import DatabaseTime
from meshnet_tracker.store.counters import Counter
from meshnet_tracker.store.demand import Demands
from meshnet_tracker.store.engine import database_url, open_engine
from meshnet_tracker.store.heartbeats import Heartbeats
from meshnet_tracker.store.leadership import Leadership
from meshnet_tracker.store.losses import Losses
from meshnet_tracker.store.news import News
from meshnet_tracker.store.operations import Operations
from meshnet_tracker.store.pins import Drains, Pins
from meshnet_tracker.store.revisions import Weights
from meshnet_tracker.store.snapshots import MeshReader
from meshnet_tracker.store.transactions import Transactions


class Store:
    """The Tracker's memory in one database; close it with `close`."""

    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions
        self.clock = DatabaseTime(transactions)
        self.leadership = Leadership(transactions)
        self.losses = Losses(transactions)
        self.news = News(transactions)
        self.pins = Pins(transactions)
        self.drains = Drains(transactions)
        self.aliases = Aliases(transactions)
        self.api_keys = ApiKeys(transactions)
        self.operations = Operations(transactions)
        self.heartbeats = Heartbeats(transactions)
        self.callers = Callers(transactions)
        self.demand = Demands(transactions)
        self.mesh = MeshReader(transactions)

    @classmethod
    def open(cls, database: str) -> Self:
        """Open a file or a URL; raises DatabaseUnavailableError. Nothing is read or made yet."""
        return cls(Transactions(open_engine(database_url(database))))

    @property
    def is_file(self) -> bool:
        """Whether the database is a SQLite file, which belongs to this machine alone."""
        return self._transactions.is_sqlite

    async def close(self) -> None:
        await self._transactions.close()

    async def migrate(self) -> tuple[str, str] | None:
        """Bring the schema up to date; answers (from, to), None if it was. Raises SchemaError."""
        patient = self._transactions.patient()
        try:
            async with patient.write() as connection:
                return await connection.run_sync(migrate.upgrade)
        finally:
            await patient.close()

    async def check_schema(self) -> None:
        """Raise SchemaError unless the schema is this release's."""
        async with self._transactions.read() as connection:
            await connection.run_sync(migrate.check_schema)

    async def ping(self) -> None:
        """Raise DatabaseUnavailableError unless the database answers."""
        async with self._transactions.read() as connection:
            await connection.execute(text("SELECT 1"))

    # Model Presets

    async def add_preset(self, record: PresetRecord, now: float) -> None:
        """Keep a preset; raises PresetExistsError."""
        async with self._transactions.write() as connection:
            await presets.add(connection, record, now)

    async def add_variant(self, name: PresetName, variant: Variant) -> None:
        """Serve one more Variant of a preset; raises UnknownPresetError, PresetExistsError."""
        async with self._transactions.write() as connection:
            await presets.add_variant(connection, name, variant)

    async def remove_preset(self, name: PresetName) -> None:
        """Forget a preset; raises UnknownPresetError."""
        async with self._transactions.write() as connection:
            await presets.remove(connection, name)

    async def presets(self) -> tuple[PresetRecord, ...]:
        async with self._transactions.read() as connection:
            return await presets.load_all(connection)

    async def manifest(self, name: str) -> Manifest | None:
        """Return what is known of a preset's bytes."""
        async with self._transactions.read() as connection:
            return await presets.load_manifest(connection, name)

    # Workers

    async def workers(self) -> tuple[WorkerRecord, ...]:
        async with self._transactions.read() as connection:
            return await worker_records.load_all(connection)

    async def worker_page(self, after: WorkerId, limit: int) -> tuple[WorkerRecord, ...]:
        """Read the next Workers after one, by id."""
        async with self._transactions.read() as connection:
            return await worker_records.load_page(connection, after, limit)

    # Placement

    async def load_snapshot(self) -> LoadedSnapshot:
        async with self._transactions.read() as connection:
            return await snapshots.load(connection)

    async def coverage(self, variant: VariantKey, weights: Weights) -> tuple[CoverageRow, ...]:
        """Count the ready replicas of each Layer (A1)."""
        async with self._transactions.read() as connection:
            return await coverage.rows(connection, variant, weights)

    async def issue_directives(
        self,
        planned: Sequence[RebalanceDirective],
        plans_seen: int,
        deadline_seconds: float,
        now: float,
        term: Term,
    ) -> tuple[RebalanceDirective, ...]:
        """Issue what is new and still legal; raises StaleSnapshotError and StaleTermError."""

        async def work(connection: AsyncConnection) -> tuple[RebalanceDirective, ...]:
            issued = await directives.issue(
                connection, planned, plans_seen, deadline_seconds, now, term
            )
            await _changed(connection, [directive.worker_id for directive in issued])
            return issued

        return await self._transactions.write_all(work)

    async def observe_epoch(self, worker_id: WorkerId, epoch: int) -> bool:
        """Continue above an epoch that a Worker has seen; answers whether it was news."""
        async with self._transactions.read() as connection:
            if epoch <= await counters.read(connection, Counter.DIRECTIVE_EPOCH):
                return False
        async with self._transactions.write() as connection:
            return await directives.observe_epoch(connection, worker_id, epoch)

    async def directives_issued_above(self, epoch: int) -> tuple[int, tuple[WorkerId, ...]]:
        """Name the newest epoch, and the Workers with directives above the given one."""
        return await self._transactions.read_all(
            lambda connection: directives.issued_above(connection, epoch)
        )

    async def expire_directives(self, now: float, term: Term) -> tuple[Directive, ...]:
        """Close directives past their deadline; answers which. Raises StaleTermError."""

        async def work(connection: AsyncConnection) -> tuple[Directive, ...]:
            await leadership.check(connection, term)
            expired = await directives.expire(connection, now)
            await _changed(connection, [worker_id for worker_id, _ in expired])
            return tuple(directive for _, directive in expired)

        if not await self._transactions.read_all(
            lambda connection: directives.any_expired(connection, now)
        ):
            return ()
        return await self._transactions.write_all(work)

    # Routes

    async def signing_keys(self) -> tuple[SigningKey, ...]:
        """Return the Mesh's keys, the newest first, which is the one that signs."""
        return await self._transactions.read_all(keys.load_all)

    async def first_signing_key(self, offered: SigningKey) -> None:
        """Keep a key if there is none yet."""
        async with self._transactions.write() as connection:
            if not await keys.load_all(connection):
                await keys.add(connection, offered)

    async def add_signing_key(self, fresh: SigningKey) -> None:
        """Sign with this key from now on."""
        async with self._transactions.write() as connection:
            await keys.add(connection, fresh)

    async def forget_signing_keys(self, key_ids: Collection[str]) -> None:
        async with self._transactions.write() as connection:
            await keys.forget(connection, key_ids)

    async def renewals(self, session_id: str) -> Renewals:
        """Return what is known of a Session's renewals."""
        async with self._transactions.read() as connection:
            return await incarnations.renewals(connection, session_id)

    async def next_incarnation(self, session_id: str, seen: int, now: float) -> int | None:
        """Give the next incarnation to who has seen one; None if its Head Worker is replaced."""
        return await self._transactions.write_rows(
            lambda connection: incarnations.take_next(connection, session_id, seen, now)
        )

    async def move_head(self, session_id: str, seen: int, now: float) -> int:
        """Give the next incarnation of a Session to another Head Worker."""
        return await self._transactions.write_rows(
            lambda connection: incarnations.move_head(connection, session_id, seen, now)
        )

    async def sweep_incarnations(self, before: float) -> None:
        """Forget Sessions that were renewed before this time only."""
        if not await self._transactions.read_all(
            lambda connection: incarnations.any_older(connection, before)
        ):
            return
        await self._transactions.write_rows(
            lambda connection: incarnations.sweep(connection, before)
        )

    async def next_admission_seq(self, count: int = 1) -> int:
        """Take so many numbers in the mesh-wide order of admission; answers the last of them."""
        return await self._transactions.write_passing_rows(
            lambda connection: counters.advance(connection, Counter.ADMISSION_SEQ, count)
        )


async def _changed(connection: AsyncConnection, worker_ids: Collection[WorkerId]) -> None:
    if worker_ids:
        await touch(connection, worker_ids)
        await news.tell(connection)
