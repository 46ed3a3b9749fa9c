import json
from pathlib import Path

from tests.tracker.programs import run_command, tracker_process


async def test_the_mesh_is_shown_while_a_tracker_runs_on_it(tmp_path: Path) -> None:
    database = ("--database", str(tmp_path / "tracker.sqlite3"))
    async with tracker_process(tmp_path):
        workers = await run_command("workers", "--json", *database)
        assert (workers.status, json.loads(workers.output)) == (0, {"workers": []})
        coverage = await run_command("coverage", "--json", *database)
        assert (coverage.status, json.loads(coverage.output)) == (0, {"variants": []})
        doctor = await run_command("doctor", *database)
        assert (doctor.status, doctor.output.splitlines()[-1]) == (0, "All is well.")
        copied = await run_command("backup", str(tmp_path / "copy.sqlite3"), *database)
        assert (copied.status, (tmp_path / "copy.sqlite3").exists()) == (0, True)


async def test_the_doctor_ends_with_status_one_when_there_is_a_problem(tmp_path: Path) -> None:
    missing = str(tmp_path / "nothing.sqlite3")
    ended = await run_command("doctor", "--database", missing)
    assert (ended.status, "PROBLEM" in ended.output) == (1, True)


async def test_a_backup_overwrites_nothing(tmp_path: Path) -> None:
    database = ("--database", str(tmp_path / "tracker.sqlite3"))
    await run_command("migrate", *database)
    (tmp_path / "copy").write_text("precious")
    ended = await run_command("backup", str(tmp_path / "copy"), *database)
    assert (ended.status, (tmp_path / "copy").read_text()) == (3, "precious")
    assert "Traceback" not in ended.errors


async def test_an_unknown_model_is_told(tmp_path: Path) -> None:
    database = ("--database", str(tmp_path / "tracker.sqlite3"))
    await run_command("migrate", *database)
    ended = await run_command("coverage", "nothing", *database)
    assert (ended.status, "nothing" in ended.errors) == (3, True)
    assert "Traceback" not in ended.errors
