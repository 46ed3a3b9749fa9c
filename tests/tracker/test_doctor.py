import json
from pathlib import Path

import pytest

from meshnet_tracker.doctor import diagnosis_lines, examine
from meshnet_tracker.store.migrate import head_revision
from meshnet_tracker.store.store import Store
from tests.tracker.builders import NOW, preset, shard
from tests.tracker.store.meshes import join


@pytest.fixture
def database(tmp_path: Path) -> str:
    return str(tmp_path / "tracker.sqlite3")


def is_empty(folder: Path) -> bool:
    return not any(folder.iterdir())


def let_others_read(file: Path) -> None:
    file.chmod(0o644)


async def test_a_database_that_somebody_plans_on_is_well(store: Store, database: str) -> None:
    assert await store.leadership.take("one")
    diagnosis = await examine(database)
    assert (diagnosis.is_well, diagnosis.schema) == (True, head_revision())
    revision, planning, verdict = diagnosis_lines(diagnosis, as_json=False)
    assert revision == f"Schema revision {head_revision()}."
    assert planning.startswith("The Tracker one plans in term 1; it said so ")
    assert verdict == "All is well."


async def test_what_is_wrong_is_found_in_the_database(store: Store, database: str) -> None:
    await store.add_preset(preset(), NOW)
    await join(store, "w1", shard(0, 4), now=await store.clock.now())
    let_others_read(Path(database))
    diagnosis = await examine(database)
    said = " ".join(finding.what for finding in diagnosis.findings)
    assert not diagnosis.is_well
    for part in ("No Tracker plans", "mode 0644", "layers [4, 6) of tiny"):
        assert part in said
    assert diagnosis_lines(diagnosis, as_json=False)[-1] == "3 problems."
    told = json.loads("\n".join(diagnosis_lines(diagnosis, as_json=True)))
    assert (told["is_well"], len(told["findings"])) == (False, 3)


async def test_a_database_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    diagnosis = await examine(str(tmp_path / "nothing.sqlite3"))
    assert (diagnosis.is_well, diagnosis.findings[0].what) == (
        False,
        "The database cannot be opened.",
    )
    assert diagnosis_lines(diagnosis, as_json=False)[-1] == "1 problem."
    assert is_empty(tmp_path)


async def test_a_server_that_does_not_answer_is_told() -> None:
    diagnosis = await examine("postgresql+asyncpg://127.0.0.1:1/mesh")
    assert diagnosis.findings[0].what == "The database does not answer."


async def test_an_older_schema_is_told_and_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "old.sqlite3"
    file.touch()
    for _ in range(2):
        diagnosis = await examine(str(file))
        assert diagnosis.findings[0].what == "The database has another release's schema."
        assert "meshnet-tracker migrate" in diagnosis.findings[0].advice
