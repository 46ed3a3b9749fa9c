"""Heartbeats, as many in one transaction as came in a moment: the Tracker's busiest writing.

Most of them say nothing new: all of those together are one statement that notes when they came.
"""

import hmac
from collections.abc import Collection, Mapping, Sequence
from enum import Enum
from typing import Any

from sqlalchemy import bindparam, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from meshnet_common.ids import WorkerId
from meshnet_common.protocol.messages import Heartbeat, ShardReport
from meshnet_tracker.records import Beat
from meshnet_tracker.store import counters, directives, news, reports, shards
from meshnet_tracker.store.counters import Counter
from meshnet_tracker.store.schema import workers
from meshnet_tracker.store.sets import among
from meshnet_tracker.store.transactions import Transactions

_FIGURES = (
    "sessions",
    "queued",
    "kv_bytes_free",
    "directive_epoch",
    "leaving",
    "link_bytes_per_sec",
    "download_bytes_per_sec",
    "decode_tokens_per_sec_per_layer",
    "prefill_tokens_per_sec_per_layer",
    "speeds_of",
    "round_trips",
)
_KNOWN = ("id", "token_sha256", "heard", "lost_at", *_FIGURES)
_SPEEDS = ("decode_tokens_per_sec_per_layer", "prefill_tokens_per_sec_per_layer", "speeds_of")


class Heard(Enum):
    """What came of a heartbeat."""

    REFUSED = "refused"
    """Its Worker is not registered with that token."""
    TAKEN = "taken"
    NEWS = "news"
    """Taken, and more than its load has changed."""


class Heartbeats:
    """Takes heartbeats."""

    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions

    async def record(
        self, beats: Sequence[Beat], new_deadline: float, now: float
    ) -> tuple[Heard, ...]:
        """Note what Workers say, the last word of each; answers what came of each, in order."""
        return await self._transactions.write_all(
            lambda connection: record(connection, beats, new_deadline, now)
        )


async def record(
    connection: AsyncConnection, beats: Sequence[Beat], new_deadline: float, now: float
) -> tuple[Heard, ...]:
    """Note that Workers live, what they serve and their load.

    News is the first heartbeat after joining or being lost, Shards that are others than before, and
    that a Worker is about to leave, which ends its directives.
    """
    known = await _known(connection, {beat.worker_id for beat in beats})
    last = {beat.worker_id: beat.heartbeat for beat in beats if _is_own(beat, known)}
    lifted = await _observe_epochs(connection, last)
    moved = await shards.replace(connection, {name: beat.shards for name, beat in last.items()})
    new = lifted | moved | {name for name, beat in last.items() if _is_new(known[name], beat)}
    figures = {name: _figures(known[name], beat) for name, beat in last.items()}
    busy = new | {name for name, values in figures.items() if _differs(known[name], values)}
    await _note_lives(connection, last.keys() - busy, now)
    await _note_figures(connection, {name: figures[name] for name in sorted(busy)}, now)
    leaving = [name for name, beat in last.items() if beat.leaving]
    await directives.abandon_all(connection, leaving, "The Worker is leaving.", now)
    await reports.note_progress(connection, _loading(last), new_deadline, now)
    if new:
        await news.tell(connection)
    return tuple(_outcome(beat, known, new) for beat in beats)


async def _known(
    connection: AsyncConnection, names: Collection[WorkerId]
) -> dict[WorkerId, Mapping[Any, Any]]:
    columns = [workers.c[name] for name in _KNOWN]
    query = select(*columns).where(among(connection, workers.c.id, names), ~workers.c.gone)
    return {row["id"]: row for row in (await connection.execute(query)).mappings()}


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
        lives = update(workers).where(among(connection, workers.c.id, sorted(names)))
        await connection.execute(lives.values(seen_at=now))


async def _note_figures(
    connection: AsyncConnection, figures: Mapping[WorkerId, Mapping[str, Any]], now: float
) -> None:
    if not figures:
        return
    number = await counters.advance(connection, Counter.MESH_CHANGE)
    values: Any = {name: bindparam(name) for name in _FIGURES}
    changed = (
        update(workers)
        .where(workers.c.id == bindparam("own_id"))
        .values(seen_at=bindparam("now"), heard=True, lost_at=None, changed=bindparam("number"))
        .values(values)
    )
    common = {"now": now, "number": number}
    rows = [{"own_id": name, **common, **own} for name, own in figures.items()]
    await connection.execute(changed, rows)


def _is_own(beat: Beat, known: Mapping[WorkerId, Mapping[Any, Any]]) -> bool:
    row = known.get(beat.worker_id)
    if row is None:
        return False
    return hmac.compare_digest(row["token_sha256"], beat.token_sha256)


def _is_new(row: Mapping[Any, Any], beat: Heartbeat) -> bool:
    was_live = row["heard"] and row["lost_at"] is None
    return not was_live or beat.leaving != row["leaving"]


def _figures(row: Mapping[Any, Any], beat: Heartbeat) -> dict[str, Any]:
    """Return what is to be stored; what is not measured stays as it was."""
    figures = {name: getattr(beat, name) for name in _FIGURES}
    figures["round_trips"] = [[trip.worker_id, trip.seconds] for trip in beat.round_trips]
    for name in ("link_bytes_per_sec", "download_bytes_per_sec"):
        figures[name] = figures[name] or row[name]
    if not beat.speeds_of:
        figures |= {name: row[name] for name in _SPEEDS}
    return figures


def _differs(row: Mapping[Any, Any], figures: Mapping[str, Any]) -> bool:
    return any(row[name] != value for name, value in figures.items())


def _loading(beats: Mapping[WorkerId, Heartbeat]) -> dict[WorkerId, tuple[ShardReport, ...]]:
    return {name: beat.shards for name, beat in beats.items() if beat.shards}


def _outcome(
    beat: Beat, known: Mapping[WorkerId, Mapping[Any, Any]], new: Collection[WorkerId]
) -> Heard:
    if not _is_own(beat, known):
        return Heard.REFUSED
    return Heard.NEWS if beat.worker_id in new else Heard.TAKEN
