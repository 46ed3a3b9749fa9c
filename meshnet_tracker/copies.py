"""What the `backup` command does; of a PostgreSQL database its own tools make copies."""

import asyncio
from pathlib import Path

from meshnet_tracker.store.backup import back_up
from meshnet_tracker.store.engine import database_url
from meshnet_tracker.store.errors import BackupError
from meshnet_tracker.tables import size


async def back_up_database(database: str, target: Path) -> list[str]:
    """Copy a SQLite database while it is used; raises BackupError, DatabaseUnavailableError."""
    url = database_url(database)
    if url.get_backend_name() != "sqlite" or not url.database:
        advice = "pg_dump --format=custom --file FILE, and restore with pg_restore"
        raise BackupError(f"This is a PostgreSQL database; copy it with its own tools: {advice}.")
    copied = await asyncio.to_thread(back_up, Path(url.database), target)
    return [
        f"{target}: {size(copied)}, a whole copy. It holds the keys that sign Route Tickets.",
        "To restore it, stop all Trackers of this database, move the database and its -wal and",
        f"-shm files away, copy {target.name} to its place, and start the Tracker.",
    ]
