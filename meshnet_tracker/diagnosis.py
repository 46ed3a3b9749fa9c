"""What is wrong with a Mesh, and what to do about it: rules over facts that others have gathered.

A problem needs somebody to act; a note is only good to know.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import msgspec

from meshnet_common.ids import WorkerId
from meshnet_common.protocol.messages import DirectiveKind, DirectiveState
from meshnet_common.shard_range import ShardRange
from meshnet_tracker.overview import VariantCoverage
from meshnet_tracker.planning.snapshot import Pin
from meshnet_tracker.records import AliasRecord, DirectiveRecord, WorkerRecord
from meshnet_tracker.tables import duration, size

SLOW_SECONDS = 0.25
MOST_SKEW_SECONDS = 2.0
GHOST_SECONDS = 60.0
"""A Worker sends its first heartbeat seconds after it has joined."""
LEAST_FREE_BYTES = 1 << 30
MOST_LOG_BYTES = 1 << 30

_GAP_ADVICE = "Let more workers join; `meshnet-tracker plan --explain` says what is in the way."
_BAD_ENDS = frozenset({DirectiveState.FAILED, DirectiveState.EXPIRED})
_OTHERS_BITS = 0o077


class Finding(msgspec.Struct, frozen=True):
    """One thing that the doctor found."""

    is_problem: bool
    what: str
    why: str
    advice: str


@dataclass(frozen=True, slots=True)
class FileFacts:
    """How a SQLite database lies on its disk; modes by file name."""

    modes: Mapping[str, int]
    free_bytes: int
    log_bytes: int


@dataclass(frozen=True, slots=True)
class Facts:
    """All that the rules look at; times by the database's clock, in seconds."""

    now: float
    latency_seconds: float
    skew_seconds: float
    plans: bool
    """Whether some Tracker holds planning now."""
    failing_since: float = 0.0
    """When its first planning pass failed since the last good one; 0: they succeed."""
    workers: tuple[WorkerRecord, ...] = ()
    coverage: tuple[VariantCoverage, ...] = ()
    opened: tuple[DirectiveRecord, ...] = ()
    closed: tuple[DirectiveRecord, ...] = ()
    """What was closed lately."""
    pins: tuple[Pin, ...] = ()
    aliases: tuple[AliasRecord, ...] = ()
    files: FileFacts | None = None
    own_names: frozenset[str] = field(default_factory=frozenset)


def diagnose(facts: Facts) -> tuple[Finding, ...]:
    """Name what is wrong, the problems first."""
    found = [
        *_database(facts),
        *_planning(facts),
        *_files(facts),
        *_workers(facts),
        *_coverage(facts),
        *_directives(facts),
        *_operators_words(facts),
    ]
    return tuple(sorted(found, key=lambda finding: not finding.is_problem))


def _database(facts: Facts) -> Iterator[Finding]:
    if facts.latency_seconds > SLOW_SECONDS:
        yield Finding(
            True,
            f"The database took {facts.latency_seconds:.2f} s to answer.",
            "Every join, order and first token waits for it.",
            "Look at its load and its disk, or move it nearer to the Trackers.",
        )
    if abs(facts.skew_seconds) > MOST_SKEW_SECONDS:
        yield Finding(
            True,
            f"This machine's clock is {facts.skew_seconds:+.1f} s off the database's.",
            "Route Tickets that a Tracker signs would count as expired, or as not yet valid.",
            "Set both machines by NTP.",
        )


def _planning(facts: Facts) -> Iterator[Finding]:
    if not facts.plans:
        yield Finding(
            True,
            "No Tracker plans.",
            "Gaps stay as they are, and nobody who joins is told what to load.",
            "Start `meshnet-tracker serve` on this database, or look at its log.",
        )
    elif facts.failing_since:
        yield Finding(
            True,
            f"No planning pass has succeeded for {duration(facts.now - facts.failing_since)}.",
            "Gaps stay as they are, and nobody who joins is told what to load.",
            "The log of the Tracker that plans says why: `planning pass failed`.",
        )


def _files(facts: Facts) -> Iterator[Finding]:
    if facts.files is None:
        return
    for name, mode in facts.files.modes.items():
        if mode & _OTHERS_BITS:
            yield Finding(
                True,
                f"Other users may read or write {name} (mode {mode:04o}).",
                "It holds the keys that sign Route Tickets.",
                f"chmod 600 {name}, and `meshnet-tracker keys rotate --revoke` if one has.",
            )
    if facts.files.free_bytes < LEAST_FREE_BYTES:
        yield Finding(
            True,
            f"Only {size(facts.files.free_bytes)} are free where the database lies.",
            "When the disk is full, nothing can be written: no join, no order, no Session.",
            "Make room there.",
        )
    if facts.files.log_bytes > MOST_LOG_BYTES:
        yield Finding(
            False,
            f"The database's write-ahead log has {size(facts.files.log_bytes)}.",
            "Somebody reads from it without end, so it cannot be folded in.",
            "Look for commands or copies that hang.",
        )


def _workers(facts: Facts) -> Iterator[Finding]:
    for worker in facts.workers:
        age = facts.now - worker.registered_at
        if worker.is_lost:
            yield Finding(
                False,
                f"The worker {worker.worker_id} at {worker.url} is lost.",
                f"It was last heard of {duration(facts.now - worker.seen_at)} ago.",
                "Look at its log and its network; it is forgotten after a day.",
            )
        if not worker.is_heard and not worker.is_lost and age > GHOST_SECONDS:
            yield Finding(
                True,
                f"The worker {worker.worker_id} at {worker.url} joined and was never heard of.",
                f"It joined {duration(age)} ago; its first heartbeat is due at once.",
                "Look at its log; if it is gone for good, nothing is lost.",
            )
        if worker.cooling_until > facts.now:
            yield Finding(
                False,
                f"The worker {worker.worker_id} gets no order to load for "
                f"{duration(worker.cooling_until - facts.now)}.",
                f"It has failed {worker.failures} times in a row.",
                "Look at its log: device memory, disk and its way to the weights.",
            )
    yield from _doubles(facts)


def _doubles(facts: Facts) -> Iterator[Finding]:
    by_url: dict[str, list[WorkerId]] = {}
    for worker in facts.workers:
        if not worker.is_lost:
            by_url.setdefault(worker.url, []).append(worker.worker_id)
    for url, worker_ids in by_url.items():
        if len(worker_ids) > 1:
            yield Finding(
                True,
                f"Several workers say that they are at {url}: {', '.join(worker_ids)}.",
                "Requests for all but one of them go to the wrong one.",
                "Give each its own --port or --advertise-url, and its own --state-dir.",
            )


def _coverage(facts: Facts) -> Iterator[Finding]:
    failed = _layers(record for record in facts.closed if record.state in _BAD_ENDS)
    loading = _layers(facts.opened)
    for variant in facts.coverage:
        key = (variant.model, variant.quantization)
        for gap in variant.gaps:
            layers = ShardRange(gap.start_layer, gap.end_layer)
            is_coming = any(layers.overlap(other) for other in loading.get(key, ()))
            is_critical = any(layers.overlap(other) for other in failed.get(key, ()))
            critical = " The gap is critical: loads for it failed." if is_critical else ""
            yield Finding(
                True,
                f"Nobody serves layers {layers} of {variant.own_name}.{critical}",
                "Workers load some of them now." if is_coming else "Nobody is told to load them.",
                "Wait for the load." if is_coming and not is_critical else _GAP_ADVICE,
            )


def _layers(records: Iterable[DirectiveRecord]) -> Mapping[tuple[str, str], list[ShardRange]]:
    found: dict[tuple[str, str], list[ShardRange]] = {}
    for record in records:
        wire = record.directive
        if wire.kind == DirectiveKind.LOAD_SHARD:
            layers = ShardRange(wire.start_layer, wire.end_layer)
            found.setdefault((wire.model, wire.quantization), []).append(layers)
    return found


def _directives(facts: Facts) -> Iterator[Finding]:
    ends: dict[tuple[str, str, str], int] = {}
    for record in facts.closed:
        if record.state in _BAD_ENDS:
            end = (record.worker_id, record.directive.kind, record.detail or record.state)
            ends[end] = ends.get(end, 0) + 1
    for (worker_id, kind, detail), count in ends.items():
        yield Finding(
            False,
            f"{count} {kind} of the worker {worker_id} came to nothing within the last hour.",
            f"It was said: {detail}",
            "The planner goes on without it for a while. If it lasts, look at that worker's log.",
        )


def _operators_words(facts: Facts) -> Iterator[Finding]:
    live = {worker.worker_id for worker in facts.workers if not worker.is_lost}
    for pin in facts.pins:
        if pin.worker_id not in live:
            yield Finding(
                False,
                f"{pin.worker_id} is pinned to {pin.variant.model} {pin.shard_range}, and absent.",
                "A pin waits for its worker.",
                f"If it does not come back: `meshnet-tracker pin remove {pin.worker_id}`.",
            )
    servable = {variant.own_name for variant in facts.coverage if variant.is_servable}
    for alias in facts.aliases:
        if alias.target not in facts.own_names:
            yield Finding(
                True,
                f"{alias.name} stands for {alias.target}, which is no model.",
                "Clients that ask for it get 404.",
                f"`meshnet-tracker alias set {alias.name} MODEL`.",
            )
        elif alias.target not in servable and alias.prior in servable:
            yield Finding(
                True,
                f"{alias.name} stands for {alias.target}, of which layers are missing.",
                f"What it stood for before, {alias.prior}, could be served.",
                f"`meshnet-tracker alias rollback {alias.name}`.",
            )
