import json
from pathlib import Path

from tests.tracker.presets.checkpoints import write_checkpoint
from tests.tracker.programs import run_command


async def test_a_name_is_cut_over_and_back(tmp_path: Path) -> None:
    database = ("--database", str(tmp_path / "t.sqlite3"))
    folder = str(write_checkpoint(tmp_path / "tiny"))
    await run_command("preset", "add", folder, "--name", "v1", *database)
    added = await run_command("preset", "add", folder, "--name", "v2", "--canary", *database)
    assert added.status == 0
    listed = (await run_command("preset", "list", *database)).output.splitlines()
    assert [line.endswith("canary") for line in listed] == [False, True]
    refused = await run_command("alias", "set", "chat", "v1", *database)
    assert (refused.status, "--force" in refused.errors) == (3, True)
    for target in ("v1", "v2"):
        ended = await run_command("alias", "set", "chat", target, "--force", *database)
        assert ended.status == 0
    assert (await run_command("alias", "rollback", "chat", *database)).status == 0
    told = await run_command("alias", "list", "--json", *database)
    (alias,) = json.loads(told.output)["aliases"]
    assert (alias["name"], alias["target"], alias["prior"]) == ("chat", "v1", "v2")
    assert (await run_command("alias", "remove", "chat", *database)).status == 0
    assert (await run_command("alias", "rollback", "chat", *database)).status == 3
