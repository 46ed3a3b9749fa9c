import json
from pathlib import Path

from tests.tracker.presets.checkpoints import write_checkpoint
from tests.tracker.programs import run_command


async def test_a_plan_is_made_of_the_database_or_of_a_saved_snapshot(tmp_path: Path) -> None:
    database = ("--database", str(tmp_path / "t.sqlite3"))
    await run_command("preset", "add", str(write_checkpoint(tmp_path / "tiny")), *database)
    file = str(tmp_path / "mesh.json")
    first = await run_command("plan", "--explain", "--save-snapshot", file, *database)
    assert (first.status, "tiny" in first.output) == (0, True)
    again = await run_command("plan", "--explain", "--snapshot", file)
    assert first.output.startswith(again.output)
    told = await run_command("plan", "--explain", "--json", "--snapshot", file)
    assert json.loads(told.output)["directives"] == []


async def test_a_file_that_is_no_snapshot_is_refused(tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text("{}")
    ended = await run_command("plan", "--snapshot", str(tmp_path / "other.json"))
    assert (ended.status, "Traceback" in ended.errors) == (3, False)
    assert str(tmp_path / "other.json") in ended.errors
    assert "--save-snapshot" in ended.errors
