import sqlite3
import stat
import threading
from contextlib import closing
from pathlib import Path

import pytest

from meshnet_tracker.store.backup import back_up
from meshnet_tracker.store.errors import BackupError
from meshnet_tracker.store.store import Store
from tests.tracker.builders import NOW, preset
from tests.tracker.store.meshes import join


async def test_a_copy_holds_all_and_is_one_private_file(
    sqlite_store: Store, tmp_path: Path
) -> None:
    await sqlite_store.add_preset(preset(), NOW)
    await join(sqlite_store, "w1")
    target = tmp_path / "copies" / "one.sqlite3"
    target.parent.mkdir()
    assert back_up(tmp_path / "tracker.sqlite3", target) == target.stat().st_size
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    assert [file.name for file in target.parent.iterdir()] == ["one.sqlite3"]
    restored = Store.open(str(target))
    assert await restored.presets() == await sqlite_store.presets()
    assert await restored.workers() == await sqlite_store.workers()
    await restored.close()


def test_a_copy_is_whole_also_while_another_process_writes(tmp_path: Path) -> None:
    database = tmp_path / "busy.sqlite3"
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("CREATE TABLE pairs (one INTEGER, other INTEGER)")
    copied = threading.Event()

    def write() -> None:
        with closing(sqlite3.connect(database, timeout=30)) as connection:
            number = 0
            while not copied.is_set() or number < 100:
                number += 1
                with connection:
                    connection.execute("INSERT INTO pairs VALUES (?, ?)", (number, -number))

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for number in range(5):
            back_up(database, tmp_path / f"copy{number}.sqlite3")
    finally:
        copied.set()
        writer.join()
    for number in range(5):
        with closing(sqlite3.connect(tmp_path / f"copy{number}.sqlite3")) as copy:
            rows, total, newest = copy.execute(
                "SELECT count(*), sum(one + other), max(one) FROM pairs"
            ).fetchone()
            assert (rows, total or 0) == (newest or 0, 0)


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    database, target = tmp_path / "one.sqlite3", tmp_path / "other.sqlite3"
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("CREATE TABLE numbers (number INTEGER)")
    target.write_text("precious")
    with pytest.raises(BackupError, match="is there already"):
        back_up(database, target)
    assert target.read_text() == "precious"


def test_what_cannot_be_copied_is_told_and_leaves_nothing_behind(tmp_path: Path) -> None:
    target = tmp_path / "copy.sqlite3"
    with pytest.raises(BackupError, match="no database at"):
        back_up(tmp_path / "nothing.sqlite3", target)
    text = tmp_path / "text.sqlite3"
    text.write_text("no database at all, " * 100)
    with pytest.raises(BackupError, match="not a database"):
        back_up(text, target)
    with pytest.raises(BackupError, match="No such file or directory"):
        back_up(text, tmp_path / "nowhere" / "copy.sqlite3")
    assert list(tmp_path.iterdir()) == [text]
