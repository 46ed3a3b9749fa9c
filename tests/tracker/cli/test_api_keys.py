import json
from pathlib import Path

from tests.tracker.programs import run_command


async def test_a_key_is_made_listed_and_revoked(tmp_path: Path) -> None:
    database = ("--database", str(tmp_path / "t.sqlite3"))
    await run_command("migrate", *database)
    limits = ("--model", "tiny", "--model", "org/other", "--requests-per-minute", "5")
    made = await run_command("key", "create", "ann", *limits, *database)
    assert (made.status, made.output[:6]) == (0, "mn_sk_")
    assert (await run_command("key", "create", "ann", *database)).status == 3
    (listed,) = json.loads((await run_command("key", "list", "--json", *database)).output)["keys"]
    assert (listed["models"], listed["requests_per_minute"]) == (["org/other", "tiny"], 5)
    assert (await run_command("key", "revoke", "ann", *database)).status == 0
    ended = await run_command("key", "revoke", "ann", *database)
    assert (ended.status, "key list" in ended.errors) == (3, True)
    for days in ("0", "nan", "inf", "1e9"):
        assert (await run_command("key", "create", "b", "--days", days, *database)).status == 2
