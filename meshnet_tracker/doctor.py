"""What the `doctor` command does: gather facts of a database, and let `diagnosis` judge them."""

import asyncio
import shutil
import stat
import time
from pathlib import Path

import msgspec

from meshnet_common.edge.clock import SystemClock
from meshnet_tracker.diagnosis import Facts, FileFacts, Finding, diagnose
from meshnet_tracker.opening import existing
from meshnet_tracker.overview import describe_coverage
from meshnet_tracker.records import Term
from meshnet_tracker.store.engine import database_url
from meshnet_tracker.store.errors import DatabaseUnavailableError, SchemaError
from meshnet_tracker.store.leadership import LEASE_SECONDS
from meshnet_tracker.store.store import Store
from meshnet_tracker.tables import duration, json_lines

LATELY_SECONDS = 3600.0


class Diagnosis(msgspec.Struct, frozen=True):
    """Whether all is well, and what is not."""

    is_well: bool
    schema: str
    planning: str
    """Which Tracker plans, in words."""
    findings: tuple[Finding, ...]


async def examine(database: str) -> Diagnosis:
    """Look at everything and change nothing, not even an old schema."""
    try:
        store = Store.open(existing(database))
    except DatabaseUnavailableError as error:
        return _hopeless("The database cannot be opened.", str(error), "Check --database.")
    try:
        schema = await store.operations.schema_revision()
        term = await store.leadership.current()
        facts = await _facts(store, database, term)
    except SchemaError as error:
        advice = "`meshnet-tracker migrate`, or install the release that made it."
        return _hopeless("The database has another release's schema.", str(error), advice)
    except DatabaseUnavailableError as error:
        advice = "Start it, or check its address, user and password in --database."
        return _hopeless("The database does not answer.", str(error), advice)
    finally:
        await store.close()
    findings = diagnose(facts)
    is_well = not any(finding.is_problem for finding in findings)
    return Diagnosis(is_well, schema, _planning(term, facts.now), findings)


def diagnosis_lines(diagnosis: Diagnosis, *, as_json: bool) -> list[str]:
    """Tell what was found."""
    if as_json:
        return json_lines(diagnosis)
    lines = [f"Schema revision {diagnosis.schema}."] if diagnosis.schema else []
    lines += [diagnosis.planning] if diagnosis.planning else []
    for finding in diagnosis.findings:
        mark = "PROBLEM" if finding.is_problem else "note   "
        lines += [f"{mark}  {finding.what}", f"         why: {finding.why}"]
        lines.append(f"         do:  {finding.advice}")
    problems = sum(finding.is_problem for finding in diagnosis.findings)
    lines.append(_count(problems))
    return lines


def _count(problems: int) -> str:
    if not problems:
        return "All is well."
    return "1 problem." if problems == 1 else f"{problems} problems."


def _planning(term: Term | None, now: float) -> str:
    if term is None:
        return ""
    age_seconds = max(0.0, now - (term.expires_at - LEASE_SECONDS))
    said = f"The Tracker {term.holder} plans in term {term.number}"
    return f"{said}; it said so {duration(age_seconds)} ago."


async def _facts(store: Store, database: str, term: Term | None) -> Facts:
    await store.ping()  # The first one makes the connection.
    began = time.perf_counter()
    now = await store.clock.now()
    latency_seconds = time.perf_counter() - began
    skew_seconds = SystemClock().now() - latency_seconds / 2 - now
    snapshot = (await store.load_snapshot()).snapshot
    coverage = describe_coverage(snapshot, await store.aliases.book())
    return Facts(
        now=now,
        latency_seconds=latency_seconds,
        skew_seconds=skew_seconds,
        plans=term is not None,
        failing_since=term.failing_since if term else 0.0,
        workers=await store.workers(),
        coverage=coverage,
        opened=await store.operations.open_directives(),
        closed=await store.operations.closed_directives(now - LATELY_SECONDS, now),
        pins=await store.pins.all(),
        aliases=await store.aliases.all(),
        files=await asyncio.to_thread(_files, database) if store.is_file else None,
        own_names=frozenset(variant.own_name for variant in coverage),
    )


def _files(database: str) -> FileFacts:
    file = Path(database_url(database).database or "")
    log = file.with_name(f"{file.name}-wal")
    present = [path for path in (file, log) if path.exists()]
    return FileFacts(
        modes={str(path): stat.S_IMODE(path.stat().st_mode) for path in present},
        free_bytes=shutil.disk_usage(file.parent).free,
        log_bytes=log.stat().st_size if log in present else 0,
    )


def _hopeless(what: str, why: str, advice: str) -> Diagnosis:
    return Diagnosis(False, "", "", (Finding(True, what, why, advice),))
