"""An Operator's own directive, written into the Tracker's database: drop a Shard, gap or not.

No endpoint and no command issues one; the running Tracker notices it as it would another Tracker's.
"""

import secrets
import sqlite3
from contextlib import closing
from pathlib import Path

from meshnet_common.shard_range import ShardRange

BUSY_SECONDS = 10.0
DEADLINE_SECONDS = 60.0


def order_drop(
    database: Path, worker_id: str, variant: tuple[str, str], dropped: ShardRange
) -> None:
    """Tell a Worker to drop these Layers of a Variant, given as its model and quantization."""
    with closing(sqlite3.connect(database, timeout=BUSY_SECONDS, isolation_level=None)) as tracker:
        tracker.execute("BEGIN IMMEDIATE")
        _insert(tracker, worker_id, variant, dropped)
        tracker.execute("COMMIT")


def open_drops(database: Path) -> int:
    """Count the directives to drop a Shard that are not done yet."""
    query = (
        "SELECT count(*) FROM directives WHERE kind = 'DROP_SHARD' "
        "AND state IN ('issued', 'accepted', 'loading')"
    )
    with closing(sqlite3.connect(database, timeout=BUSY_SECONDS)) as tracker:
        (count,) = tracker.execute(query).fetchone()
    return int(count)


def _insert(
    tracker: sqlite3.Connection, worker_id: str, variant: tuple[str, str], dropped: ShardRange
) -> None:
    advance = "UPDATE counters SET value = value + 1 WHERE name = 'directive_epoch'"
    (epoch,) = tracker.execute(f"{advance} RETURNING value").fetchone()
    (now,) = tracker.execute("SELECT max(seen_at) FROM workers").fetchone()
    row = {
        "id": secrets.token_hex(16),
        "epoch": epoch,
        "worker_id": worker_id,
        "kind": "DROP_SHARD",
        "model": variant[0],
        "quantization": variant[1],
        "start_layer": dropped.start,
        "end_layer": dropped.end,
        "reason": "operator",
        "state": "issued",
        "detail": "",
        "issued_at": now,
        "deadline": now + DEADLINE_SECONDS,
        "updated_at": now,
        "bytes_done": 0,
        "bytes_total": 0,
    }
    places = ", ".join(f":{name}" for name in row)
    tracker.execute(f"INSERT INTO directives ({', '.join(row)}) VALUES ({places})", row)
