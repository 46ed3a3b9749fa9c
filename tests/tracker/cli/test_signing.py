from pathlib import Path

from tests.tracker.programs import run_command


async def test_the_key_that_signs_is_rotated_and_listed(tmp_path: Path) -> None:
    database = ("--database", str(tmp_path / "t.sqlite3"))
    await run_command("migrate", *database)
    rotations = [await run_command("keys", "rotate", *database) for _ in range(2)]
    assert [ended.status for ended in rotations] == [0, 0]
    listed = (await run_command("keys", "list", *database)).output.splitlines()
    assert rotations[1].output.split()[1] == listed[0].split()[0]
    assert [line.split()[5] for line in listed] == ["signs", "verifies"]
