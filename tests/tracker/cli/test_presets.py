from pathlib import Path

from meshnet_tracker.cli.presets import QUANTIZATIONS as OFFERED
from meshnet_tracker.presets.figures import QUANTIZATIONS
from tests.tracker.presets.checkpoints import write_checkpoint
from tests.tracker.programs import run_command


async def test_a_preset_is_added_listed_shown_and_removed(tmp_path: Path) -> None:
    database = ("--database", str(tmp_path / "t.sqlite3"))
    folder = write_checkpoint(tmp_path / "tiny")
    added = await run_command("preset", "add", str(folder), *database)
    assert (added.status, added.output.splitlines()[0]) == (0, "Added tiny:")
    listed = await run_command("preset", "list", *database)
    assert listed.output.startswith("tiny  3 layers  bfloat16")
    shown = await run_command("preset", "show", "tiny", *database)
    assert "nf4" in shown.output
    assert (await run_command("preset", "remove", "tiny", *database)).status == 0
    missing = await run_command("preset", "show", "tiny", *database)
    assert (missing.status, "Traceback" in missing.errors) == (3, False)


async def test_an_unknown_quantization_is_a_usage_error(tmp_path: Path) -> None:
    ended = await run_command("preset", "add", str(tmp_path), "--quantization", "int3")
    assert ended.status == 2


def test_the_command_offers_every_quantization_with_known_sizes() -> None:
    assert OFFERED == QUANTIZATIONS
