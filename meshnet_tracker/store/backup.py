"""A copy of a SQLite database that is whole, also while Trackers write to it.

SQLite's own backup reads the pages and begins anew when another process writes meanwhile; all of
them in one step holds no writer up, since readers of a WAL file hold up nobody.
"""

import os
import sqlite3
from contextlib import closing, suppress
from pathlib import Path

from meshnet_tracker.store.errors import BackupError

WAIT_SECONDS = 10.0


def back_up(database: Path, target: Path) -> int:
    """Copy the database into a new, private file; answers its bytes.

    Raises BackupError, and then leaves no file behind, when the target is there already, the
    database is not, or the copy is not sound.
    """
    if not database.is_file():
        raise BackupError(
            f"There is no database at {database}. Give --database as your Tracker has it."
        )
    try:
        # The copy holds the key that signs Route Tickets, as the database does.
        os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    except FileExistsError as error:
        raise BackupError(f"{target} is there already; name another file.") from error
    except OSError as error:
        raise BackupError(f"{target}: {error.strerror}.") from error
    try:
        _copy(database, target)
        return target.stat().st_size
    except (sqlite3.Error, OSError) as error:
        _remove(target)
        raise BackupError(f"{error}.") from error
    except BackupError:
        _remove(target)
        raise


def _copy(database: Path, target: Path) -> None:
    address = f"{database.absolute().as_uri()}?mode=rw"
    with (
        closing(sqlite3.connect(address, uri=True, timeout=WAIT_SECONDS)) as source,
        closing(sqlite3.connect(target)) as copy,
    ):
        source.backup(copy)
        # One file that can be carried away, without a log beside it.
        copy.execute("PRAGMA journal_mode = DELETE")
        (verdict,) = copy.execute("PRAGMA quick_check").fetchone()
        if verdict != "ok":
            raise BackupError(f"The copy is not sound: {verdict}.")


def _remove(target: Path) -> None:
    for name in (target, *(target.with_name(target.name + end) for end in ("-wal", "-shm"))):
        with suppress(FileNotFoundError):
            name.unlink()
