"""Reads the Mesh Snapshot, the only input of planner and router, and what has changed in it.

A Worker is in it from its first heartbeat on: one that registers again may hold a great deal, and
would be told to load it once more.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from sqlalchemy import JSON, Select, bindparam, func, or_, select
from sqlalchemy.ext.asyncio import AsyncConnection

from meshnet_common.ids import WorkerId
from meshnet_common.presets import ModelPreset
from meshnet_common.protocol.messages import ShardReport
from meshnet_tracker.planning.snapshot import Demand, Holding, MeshSnapshot, Pin, WorkerView
from meshnet_tracker.records import LoadedSnapshot, OpenDirective
from meshnet_tracker.store import counters, demand, directives, pins, presets, shards
from meshnet_tracker.store.counters import Counter
from meshnet_tracker.store.holdings import held_shards
from meshnet_tracker.store.revisions import Revisions
from meshnet_tracker.store.schema import workers
from meshnet_tracker.store.sets import SQLITE
from meshnet_tracker.store.transactions import Transactions
from meshnet_tracker.store.words import LOAD, Load
from meshnet_tracker.worker_rules import MAX_SPEED

LEAST_SPEED = 1e-3
"""Layer-tokens per second of a Worker that measured nothing; the planner divides by it."""

LEAST_RATE = 1.0
"""Bytes per second of the slowest line that counts; what a line takes is finite."""

_COLUMNS = (
    "id",
    "url",
    "fingerprint",
    "vram_bytes",
    "quantizations",
    "benchmark_tokens_per_sec",
    "benchmark_model",
    "decode_tokens_per_sec_per_layer",
    "speeds_of",
    "link_bytes_per_sec",
    "download_bytes_per_sec",
    "starts_at_zero",
    "heard",
    "lost_at",
    "leaving",
    "sessions",
    "queued",
    "kv_bytes_free",
    "region",
    "round_trips",
    "cooling_until",
)

_VIEWS = select(*(workers.c[name] for name in _COLUMNS))
_LIVE = _VIEWS.where(workers.c.heard & workers.c.lost_at.is_(None))
_IS_CHANGED = workers.c.changed > bindparam("since")
_IS_MORE = or_(
    workers.c.changed_beside_load > bindparam("since"),
    # Noted by a Tracker of an older release, for whatever reason.
    workers.c.changed.not_in((workers.c.changed_beside_load, workers.c.changed_by_load)),
)
_CHANGED = _VIEWS.where(_IS_CHANGED & _IS_MORE)


@dataclass(frozen=True, slots=True)
class MeshNumbers:
    """What tells two instants of a Mesh apart."""

    change: int = -1
    preset_version: int = -1


@dataclass(frozen=True, slots=True)
class MeshSettings:
    """What only Operators change."""

    presets: tuple[ModelPreset, ...]
    pins: tuple[Pin, ...]
    drained: frozenset[WorkerId]


@dataclass(frozen=True, slots=True)
class MeshChanges:
    """What is other than at an earlier instant."""

    numbers: MeshNumbers
    issued_plans: int
    workers: Mapping[WorkerId, WorkerView | None]
    """None is: no longer in the Mesh."""
    loads: Mapping[WorkerId, Load]
    """Of those of whom nothing else has changed."""
    settings: MeshSettings | None
    """None: as before."""
    is_whole: bool = False
    """Whoever is not named is not in the Mesh."""


class MeshReader:
    """Reads the Mesh for who keeps a copy of it; every method is one transaction."""

    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions

    async def changes(self, since: MeshNumbers) -> MeshChanges:
        """Read what has changed since."""
        return await self._transactions.read_all(lambda connection: read_changes(connection, since))

    async def demand(self) -> tuple[Demand, ...]:
        """Read how much each Variant is asked for."""
        return await self._transactions.read_all(demand.load)


async def load(connection: AsyncConnection) -> LoadedSnapshot:
    """Read presets and live Workers, both by name, and how many plans were issued so far."""
    read = await read_changes(connection, MeshNumbers())
    assert read.settings is not None
    live = [view for view in read.workers.values() if view is not None]
    revisions = Revisions.of(read.settings.presets)
    snapshot = MeshSnapshot(
        presets=read.settings.presets,
        workers=tuple(
            as_seen(view, read.settings, revisions)
            for view in sorted(live, key=lambda view: view.worker_id)
        ),
        pins=read.settings.pins,
        demand=await demand.load(connection),
    )
    return LoadedSnapshot(snapshot, read.issued_plans)


async def read_changes(connection: AsyncConnection, since: MeshNumbers) -> MeshChanges:
    """Read what has changed since, or the whole Mesh if the numbers tell of another one."""
    values = await counters.read_all(connection)
    numbers = MeshNumbers(values[Counter.MESH_CHANGE], values[Counter.PRESET_VERSION])
    known: Mapping[WorkerId, WorkerView | None] = {}
    loads: Mapping[WorkerId, Load] = {}
    is_whole = not 0 <= since.change <= numbers.change
    if is_whole:
        known = await _views(connection, _LIVE, {})
    elif since.change != numbers.change:
        known = await _views(connection, _CHANGED, {"since": since.change})
        loads = await _loads(connection, since.change)
    settings = None
    if since.preset_version != numbers.preset_version:
        settings = await _settings(connection)
    plans = values[Counter.ISSUED_PLANS]
    return MeshChanges(numbers, plans, known, loads, settings, is_whole)


async def _settings(connection: AsyncConnection) -> MeshSettings:
    return MeshSettings(
        presets=tuple(record.preset for record in await presets.load_all(connection)),
        pins=await pins.load_pins(connection),
        drained=await pins.load_drained(connection),
    )


async def _views(
    connection: AsyncConnection, query: Select[Any], values: Mapping[str, int]
) -> dict[WorkerId, WorkerView | None]:
    rows = (await connection.execute(query, values)).mappings().all()
    live = [row["id"] for row in rows if row["heard"] and row["lost_at"] is None]
    is_whole = query is _LIVE
    reports = await shards.by_worker(connection, None if is_whole else live)
    orders = (
        await directives.open_by_worker(connection)
        if is_whole
        else await directives.open_among(connection, live)
    )
    views: dict[WorkerId, WorkerView | None] = {row["id"]: None for row in rows}
    alive = frozenset(live)
    for row in rows:
        name = row["id"]
        if name in alive:
            views[name] = _view(row, reports.get(name, ()), orders.get(name, ()))
    return views


async def _loads(connection: AsyncConnection, since: int) -> dict[WorkerId, Load]:
    found = await connection.execute(_loads_since(connection.dialect.name), {"since": since})
    return {name: Load(*load) for name, load in (found.scalar_one() or {}).items()}


@cache
def _loads_since(dialect: str) -> Select[Any]:
    # As one row, since a SQLite driver lets other threads run before each.
    is_sqlite = dialect == SQLITE
    gather = func.json_group_object if is_sqlite else func.json_object_agg
    line = func.json_array if is_sqlite else func.json_build_array
    load = line(*(workers.c[name] for name in LOAD))
    return select(gather(workers.c.id, load, type_=JSON)).where(_IS_CHANGED & ~_IS_MORE)


def _view(
    row: Mapping[Any, Any], reports: Collection[ShardReport], orders: Collection[OpenDirective]
) -> WorkerView:
    held = held_shards(tuple(reports), [order.directive for order in orders])
    if row["leaving"]:
        # All that it holds goes away, as if it were told to drop it.
        held = tuple(replace(shard, holding=Holding.DRAINING) for shard in held)
    return WorkerView(
        worker_id=row["id"],
        url=row["url"],
        vram_bytes=row["vram_bytes"],
        speed=_speed(row),
        quantizations=frozenset(row["quantizations"]),
        held=held,
        starts_at_zero=row["starts_at_zero"],
        sessions=row["sessions"],
        cooling_until=row["cooling_until"],
        fingerprint=row["fingerprint"],
        leaving=row["leaving"],
        queued=row["queued"],
        kv_bytes_free=row["kv_bytes_free"],
        region=row["region"],
        round_trips=tuple(sorted((WorkerId(name), trip) for name, trip in row["round_trips"])),
        uplink_bytes_per_sec=_rate(row["link_bytes_per_sec"]),
        download_bytes_per_sec=_rate(row["download_bytes_per_sec"]),
    )


def _speed(row: Mapping[Any, Any]) -> float:
    """Prefer what was measured on loaded Layers; small changes of it are noise."""
    benchmark: float = row["benchmark_tokens_per_sec"]
    decode: float = row["decode_tokens_per_sec_per_layer"]
    is_loaded = row["speeds_of"] != row["benchmark_model"]
    return rounded(decode if decode and is_loaded else benchmark)


def _rate(measured: float) -> float:
    return min(max(measured, LEAST_RATE), MAX_SPEED) if measured else 0.0


def rounded(speed: float) -> float:
    """Keep the first two digits."""
    if speed <= LEAST_SPEED:
        return LEAST_SPEED
    speed = min(speed, MAX_SPEED)
    return round(speed, 1 - math.floor(math.log10(speed)))


def as_seen(view: WorkerView, settings: MeshSettings, revisions: Revisions) -> WorkerView:
    """Say what settings make of a Worker: drained or not, and which of its Shards serve.

    The very same view if that is known.
    """
    retiring = view.worker_id in settings.drained
    held = revisions.marked(view.held)
    if view.retiring == retiring and held == view.held:
        return view
    return replace(view, retiring=retiring, held=held)
