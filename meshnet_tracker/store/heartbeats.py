"""Heartbeats, as many in one transaction as came in a moment: the Tracker's busiest writing.

Most of them say nothing new: all of those together are one statement that notes when they came.
What a Worker has said before is remembered with the number of its last change, so that it need not
be read again while the database still has that number.
"""

import hmac
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cache
from typing import Any

import msgspec
from sqlalchemy import JSON, Select, Update, bindparam, func, select, text, update
from sqlalchemy.ext.asyncio import AsyncConnection

from meshnet_common.ids import WorkerId
from meshnet_common.protocol.messages import Heartbeat, ShardReport
from meshnet_tracker.records import Beat
from meshnet_tracker.store import counters, directives, news, reports, shards
from meshnet_tracker.store.changes import NUMBERED
from meshnet_tracker.store.counters import Counter
from meshnet_tracker.store.schema import workers
from meshnet_tracker.store.sets import NAMES, SQLITE, among_names, listed
from meshnet_tracker.store.transactions import Transactions
from meshnet_tracker.store.words import FIGURES, LOAD, Known, Said

READ_AGAIN_SECONDS = 60.0
"""A database that was set back may count to a number once more, with something else in it."""

MOST_REMEMBERED = 50_000

_KNOWN = ("id", "token_sha256", "heard", "lost_at", *FIGURES)
_NOTE_FIGURES = (
    update(workers)
    .where(workers.c.id == bindparam("own_id"))
    .values(seen_at=bindparam("now"), heard=True, lost_at=None)
    .values({name: bindparam(name) for name in FIGURES})
    .values(NUMBERED)
)
_NOTE_LOADS = {
    "sqlite": text(
        "UPDATE workers SET seen_at = :now, changed = :number, changed_by_load = :number, "
        "changed_beside_load = CASE WHEN changed IN (changed_by_load, changed_beside_load) "
        "THEN changed_beside_load ELSE changed END, sessions = said.value ->> 1, "
        "queued = said.value ->> 2, kv_bytes_free = said.value ->> 3 "
        "FROM json_each(:loads) AS said WHERE workers.id = said.value ->> 0"
    ),
    "postgresql": text(
        "UPDATE workers SET seen_at = :now, changed = :number, changed_by_load = :number, "
        "changed_beside_load = CASE WHEN changed IN (changed_by_load, changed_beside_load) "
        "THEN changed_beside_load ELSE changed END, sessions = (said ->> 1)::integer, "
        "queued = (said ->> 2)::integer, kv_bytes_free = (said ->> 3)::bigint "
        "FROM json_array_elements(CAST(:loads AS json)) AS said WHERE workers.id = said ->> 0"
    ),
}
"""Whole numbers only: in JSON they stay what they are."""


class Heard(Enum):
    """What came of a heartbeat."""

    REFUSED = "refused"
    """Its Worker is not registered with that token."""
    TAKEN = "taken"
    NEWS = "news"
    """Taken, and more than its load has changed."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """What came of each heartbeat, and what is known of Workers once the transaction is done."""

    heard: tuple[Heard, ...]
    known: Mapping[WorkerId, Known] = field(default_factory=dict)


class Heartbeats:
    """Takes heartbeats."""

    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions
        self._known: dict[WorkerId, Known] = {}

    async def record(
        self, beats: Sequence[Beat], new_deadline: float, now: float
    ) -> tuple[Heard, ...]:
        """Note what Workers say, the last word of each; answers what came of each, in order."""
        recorded = await self._transactions.write_passing(
            lambda connection: record(connection, beats, self._known, new_deadline, now)
        )
        # Not before: a number that was not committed is given to another change.
        self._known.update(recorded.known)
        if len(self._known) > MOST_REMEMBERED:
            self._known.clear()
        return recorded.heard


async def record(
    connection: AsyncConnection,
    beats: Sequence[Beat],
    remembered: Mapping[WorkerId, Known],
    new_deadline: float,
    now: float,
) -> Recorded:
    """Note that Workers live, what they serve and their load.

    News is the first heartbeat after joining or being lost, Shards that are others than before, and
    that a Worker is about to leave, which ends its directives.
    """
    known = await _known(connection, {beat.worker_id for beat in beats}, remembered, now)
    last = {beat.worker_id: beat.heartbeat for beat in beats if _is_own(beat, known)}
    lifted = await _observe_epochs(connection, last)
    said = {name: Said.of(known[name], beat) for name, beat in last.items()}
    new = lifted | {name for name, words in said.items() if words.is_news}
    changed = {name: said[name] for name in sorted(said) if name in new or not said[name].is_same}
    await _note_lives(connection, said.keys() - changed.keys(), now)
    number = await _note_changes(connection, changed, now)
    leaving = [name for name, beat in last.items() if beat.leaving]
    await directives.abandon_all(connection, leaving, "The Worker is leaving.", now)
    await reports.note_progress(connection, _loading(last), new_deadline, now)
    if new:
        await news.tell(connection)
    after = known | {name: words.known_at(number) for name, words in changed.items()}
    return Recorded(tuple(_outcome(beat, known, new) for beat in beats), after)


async def _known(
    connection: AsyncConnection,
    names: Collection[WorkerId],
    remembered: Mapping[WorkerId, Known],
    now: float,
) -> dict[WorkerId, Known]:
    numbers = await _change_numbers(connection, names)
    fresh = {
        name: known
        for name, number in numbers.items()
        if (known := remembered.get(name)) is not None
        and known.changed == number
        and 0 <= now - known.read_at < READ_AGAIN_SECONDS
    }
    others = numbers.keys() - fresh.keys()
    if not others:
        return fresh
    own = {NAMES: listed(connection, others)}
    rows = await connection.execute(_words_of(connection.dialect.name), own)
    held = await shards.by_worker(connection, others)
    return fresh | {
        row["id"]: Known(
            changed=numbers[row["id"]],
            read_at=now,
            token_sha256=row["token_sha256"],
            was_live=row["heard"] and row["lost_at"] is None,
            figures={name: row[name] for name in FIGURES},
            shards=held.get(row["id"], ()),
        )
        for row in rows.mappings()
    }


@cache
def _words_of(dialect: str) -> Select[Any]:
    columns = [workers.c[name] for name in _KNOWN]
    return select(*columns).where(among_names(dialect, workers.c.id))


async def _change_numbers(
    connection: AsyncConnection, names: Collection[WorkerId]
) -> dict[WorkerId, int]:
    """Read, as one row, the numbers of the last changes of those Workers that are there."""
    own = {NAMES: listed(connection, names)}
    found = await connection.execute(_numbers_of(connection.dialect.name), own)
    return found.scalar_one() or {}


@cache
def _numbers_of(dialect: str) -> Select[Any]:
    gather = func.json_group_object if dialect == SQLITE else func.json_object_agg
    query = select(gather(workers.c.id, workers.c.changed, type_=JSON))
    return query.where(among_names(dialect, workers.c.id), ~workers.c.gone)


async def _observe_epochs(
    connection: AsyncConnection, beats: Mapping[WorkerId, Heartbeat]
) -> set[WorkerId]:
    newest = await counters.read(connection, Counter.DIRECTIVE_EPOCH)
    return {
        name
        for name, beat in beats.items()
        if beat.directive_epoch > newest
        and await directives.observe_epoch(connection, name, beat.directive_epoch)
    }


async def _note_lives(connection: AsyncConnection, names: Collection[WorkerId], now: float) -> None:
    if names:
        seen = {NAMES: listed(connection, sorted(names)), "now": now}
        await connection.execute(_noting_lives(connection.dialect.name), seen)


@cache
def _noting_lives(dialect: str) -> Update:
    own = among_names(dialect, workers.c.id)
    return update(workers).where(own).values(seen_at=bindparam("now"))


async def _note_changes(
    connection: AsyncConnection, changed: Mapping[WorkerId, Said], now: float
) -> int:
    """Store what is other than before; answers the number of this change."""
    if not changed:
        return 0
    number = await counters.advance(connection, Counter.MESH_CHANGE)
    loads = [name for name, words in changed.items() if words.is_load_only]
    moved = {name: words.shards for name, words in changed.items() if words.is_moved}
    await _note_loads(connection, [(name, changed[name]) for name in loads], number, now)
    others = changed.keys() - set(loads)
    await _note_figures(connection, [(name, changed[name]) for name in sorted(others)], number, now)
    await shards.put(connection, moved)
    return number


async def _note_loads(
    connection: AsyncConnection,
    changed: Collection[tuple[WorkerId, Said]],
    number: int,
    now: float,
) -> None:
    if not changed:
        return
    rows = [(name, *(words.figures[figure] for figure in LOAD)) for name, words in changed]
    values = {"loads": msgspec.json.encode(rows).decode(), "number": number, "now": now}
    await connection.execute(_NOTE_LOADS[connection.dialect.name], values)


async def _note_figures(
    connection: AsyncConnection,
    changed: Collection[tuple[WorkerId, Said]],
    number: int,
    now: float,
) -> None:
    if not changed:
        return
    common = {"now": now, "number": number}
    rows = [{"own_id": name, **common, **words.figures} for name, words in changed]
    await connection.execute(_NOTE_FIGURES, rows)


def _is_own(beat: Beat, known: Mapping[WorkerId, Known]) -> bool:
    own = known.get(beat.worker_id)
    return own is not None and hmac.compare_digest(own.token_sha256, beat.token_sha256)


def _loading(beats: Mapping[WorkerId, Heartbeat]) -> dict[WorkerId, tuple[ShardReport, ...]]:
    return {name: beat.shards for name, beat in beats.items() if beat.shards}


def _outcome(beat: Beat, known: Mapping[WorkerId, Known], new: Collection[WorkerId]) -> Heard:
    if not _is_own(beat, known):
        return Heard.REFUSED
    return Heard.NEWS if beat.worker_id in new else Heard.TAKEN
