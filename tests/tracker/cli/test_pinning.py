import json
from pathlib import Path

from tests.tracker.presets.checkpoints import write_checkpoint
from tests.tracker.programs import run_command


async def test_a_worker_is_pinned_and_let_go(tmp_path: Path) -> None:
    database = ("--database", str(tmp_path / "t.sqlite3"))
    await run_command("preset", "add", str(write_checkpoint(tmp_path / "tiny")), *database)
    assert (await run_command("pin", "add", "w1", "tiny", "0", "2", *database)).status == 0
    (pin,) = json.loads((await run_command("pin", "list", "--json", *database)).output)["pins"]
    assert (pin["worker_id"], pin["start_layer"], pin["end_layer"]) == ("w1", 0, 2)
    assert (await run_command("pin", "remove", "w1", *database)).status == 0
    assert (await run_command("pin", "remove", "w1", *database)).status == 3
    assert (await run_command("pin", "add", "w1", "tiny", "0", "zero", *database)).status == 2
    ended = await run_command("pin", "add", "w1", "tiny", "0", f"{10**30}", *database)
    assert (ended.status, "has layers 0 to" in ended.errors) == (3, True)
    assert "Traceback" not in ended.errors


async def test_a_worker_that_is_not_there_is_not_drained(tmp_path: Path) -> None:
    database = ("--database", str(tmp_path / "t.sqlite3"))
    await run_command("migrate", *database)
    ended = await run_command("drain", "add", "w1", *database)
    assert (ended.status, "meshnet-tracker workers" in ended.errors) == (3, True)
    assert (await run_command("drain", "remove", "w1", *database)).status == 3
    told = await run_command("drain", "list", "--json", *database)
    assert json.loads(told.output) == {"workers": []}
