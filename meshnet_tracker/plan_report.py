"""What the `plan` command does: plan one pass over a snapshot, tell it, and change nothing."""

import os
from pathlib import Path

from meshnet_tracker.opening import open_store
from meshnet_tracker.planning.explain import Explanation, explain
from meshnet_tracker.planning.snapshot import PlannerPolicy
from meshnet_tracker.planning.snapshot_json import (
    SavedSnapshot,
    SnapshotFormatError,
    decode_snapshot,
    encode_snapshot,
)
from meshnet_tracker.store.errors import BackupError
from meshnet_tracker.tables import json_lines


async def take_snapshot(database: str, policy: PlannerPolicy) -> SavedSnapshot:
    """Read the Mesh as it is now, to be planned under this policy."""
    async with open_store(database) as store:
        loaded = await store.load_snapshot()
        now = await store.clock.now()
    return SavedSnapshot(taken_at=now, policy=policy, snapshot=loaded.snapshot)


def read_snapshot(file: Path) -> SavedSnapshot:
    """Read a snapshot that was saved; raises SnapshotFormatError."""
    try:
        return decode_snapshot(file.read_bytes())
    except OSError as error:
        raise SnapshotFormatError(f"{file}: {error.strerror}.") from error
    except SnapshotFormatError as error:
        advice = "`meshnet-tracker plan --save-snapshot FILE` writes one."
        raise SnapshotFormatError(f"{file}: {error.detail} {advice}") from error


def save_snapshot(saved: SavedSnapshot, file: Path) -> list[str]:
    """Write a snapshot into a new, private file.

    Raises BackupError if it is there already or cannot be written, and then leaves none behind.
    """
    try:
        handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise BackupError(f"{file}: {error.strerror}.") from error
    try:
        with os.fdopen(handle, "wb") as output:
            output.write(encode_snapshot(saved))
    except OSError as error:
        file.unlink(missing_ok=True)
        raise BackupError(f"{file}: {error.strerror}.") from error
    return [f"{file}: {len(saved.snapshot.workers)} workers as they were."]


def plan_lines(saved: SavedSnapshot, *, explained: bool, as_json: bool) -> list[str]:
    """Plan one pass and tell what would be ordered; explained: also why, and why not more."""
    planned = explain(saved.snapshot, saved.policy, saved.taken_at)
    if as_json:
        return json_lines(planned if explained else {"directives": planned.directives})
    if explained:
        return [*planned.lines, *_nothing(planned)]
    orders = [
        f"{each.worker_id}: {each.kind} {each.variant} {each.shard_range} ({each.reason})"
        for each in planned.directives
    ]
    return [*orders, *_nothing(planned)]


def _nothing(planned: Explanation) -> list[str]:
    return [] if planned.directives else ["Nothing would be ordered now."]
