import json
import resource
import signal
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from meshnet_tracker.plan_report import (
    plan_lines,
    read_snapshot,
    save_snapshot,
    take_snapshot,
)
from meshnet_tracker.planning.snapshot import PlannerPolicy
from meshnet_tracker.planning.snapshot_json import SnapshotFormatError
from meshnet_tracker.store.errors import BackupError
from meshnet_tracker.store.store import Store
from tests.tracker.builders import NOW, preset
from tests.tracker.store.meshes import join


@pytest.fixture
async def database(store: Store, tmp_path: Path) -> str:
    """A Mesh with one Worker that holds nothing yet."""
    await store.add_preset(preset(), NOW)
    await join(store, "w1")
    return str(tmp_path / "tracker.sqlite3")


async def test_what_would_be_ordered_is_told_and_nothing_is_ordered(
    store: Store, database: str
) -> None:
    saved = await take_snapshot(database, PlannerPolicy())
    (order,) = plan_lines(saved, explained=False, as_json=False)
    assert order.startswith("w1: LOAD_SHARD ")
    assert order.endswith("[0, 6) (gap)")
    assert await store.operations.open_directives() == ()


async def test_explained_each_order_has_its_why(database: str) -> None:
    saved = await take_snapshot(database, PlannerPolicy())
    told = json.loads("\n".join(plan_lines(saved, explained=True, as_json=True)))
    assert [bool(order["why"]) for order in told["directives"]] == [True]
    lines = plan_lines(saved, explained=True, as_json=False)
    assert any(told["directives"][0]["why"] in line for line in lines)


async def test_a_policy_that_leaves_no_room_plans_nothing_and_says_why(database: str) -> None:
    saved = await take_snapshot(database, PlannerPolicy(headroom_bytes=100_000))
    assert plan_lines(saved, explained=False, as_json=False) == ["Nothing would be ordered now."]
    lines = plan_lines(saved, explained=True, as_json=False)
    assert any("there is room for 0 more" in line for line in lines)


async def test_a_saved_snapshot_is_planned_as_the_mesh_was(database: str, tmp_path: Path) -> None:
    saved = await take_snapshot(database, replace(PlannerPolicy(), headroom_share=0.3))
    file = tmp_path / "mesh.json"
    assert save_snapshot(saved, file) == [f"{file}: 1 workers as they were."]
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    again = read_snapshot(file)
    assert again == saved
    for explained in (False, True):
        assert plan_lines(again, explained=explained, as_json=True) == plan_lines(
            saved, explained=explained, as_json=True
        )
    with pytest.raises(BackupError, match="File exists"):
        save_snapshot(saved, file)


def test_what_is_no_snapshot_is_refused(tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(SnapshotFormatError):
        read_snapshot(tmp_path / "other.json")


async def test_a_snapshot_that_cannot_be_written_leaves_no_file(
    database: str, tmp_path: Path
) -> None:
    saved = await take_snapshot(database, PlannerPolicy())
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, most))
    try:
        with pytest.raises(BackupError, match="too large"):
            save_snapshot(saved, tmp_path / "mesh.json")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
        signal.signal(signal.SIGXFSZ, before)
    assert not (tmp_path / "mesh.json").exists()
