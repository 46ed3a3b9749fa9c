import asyncio
import json
from pathlib import Path

import pytest

from meshnet_tracker.api_keys import KeyLimits, create_key, list_keys, revoke_key
from meshnet_tracker.key_rules import PREFIX
from meshnet_tracker.opening import make_store, open_store
from meshnet_tracker.registry import migrate_database
from meshnet_tracker.store.errors import ApiKeyError
from tests.tracker.builders import NOW, preset


@pytest.fixture
async def database(tmp_path: Path) -> str:
    """A database with tables."""
    name = str(tmp_path / "tracker.sqlite3")
    async with make_store(name):
        return name


async def test_a_key_is_shown_once_and_kept_as_a_hash(database: str) -> None:
    token, said, *_ = await create_key(database, "ann", ["tiny"], KeyLimits(60, 9000, 1.0))
    assert token.startswith(PREFIX)
    assert "ann" in said
    rows = await list_keys(database, as_json=False)
    assert rows[1].split()[:4] == ["ann", f"{token[:10]}...", "valid", "until"]
    (facts,) = json.loads("\n".join(await list_keys(database, as_json=True)))["keys"]
    assert (facts["models"], facts["requests_per_minute"]) == (["tiny"], 60)
    assert facts["tokens_per_minute"] == 9000
    assert token not in str(facts)


def test_no_file_of_the_database_holds_a_key(tmp_path: Path) -> None:
    database = str(tmp_path / "t.sqlite3")
    asyncio.run(migrate_database(database))
    token, *_ = asyncio.run(create_key(database, "ann"))
    files = [file.read_bytes() for file in tmp_path.iterdir()]
    assert len(files) >= 1
    assert not any(token.encode() in data or token[10:].encode() in data for data in files)


async def test_a_revoked_key_is_listed_as_one(database: str) -> None:
    assert await list_keys(database, as_json=False) == [
        "No keys. `meshnet-tracker key create NAME` makes one."
    ]
    await create_key(database, "ann")
    assert "nothing any more" in (await revoke_key(database, "ann"))[0]
    assert (await list_keys(database, as_json=False))[1].split()[2] == "revoked"
    with pytest.raises(ApiKeyError):
        await revoke_key(database, "ann")


async def test_names_that_mean_no_model_are_told_when_a_key_is_made(database: str) -> None:
    async with open_store(database) as store:
        await store.add_preset(preset(quantizations=("bfloat16", "float32")), NOW)
        await store.aliases.set("chat", "tiny-float32", NOW)
    *_, known = await create_key(database, "ann", ["tiny", "tiny-float32", "chat"])
    assert "cannot be shown again" in known
    *_, unknown = await create_key(database, "bob", ["tiny", "tinny"])
    assert unknown == "No model is called tinny; the key opens it once one is."


@pytest.mark.parametrize("name", ["", "a b", "x" * 65, "a\0b"])
async def test_a_name_that_is_none_is_refused_before_any_database_sees_it(
    tmp_path: Path, name: str
) -> None:
    with pytest.raises(ApiKeyError, match="letters"):
        await create_key(str(tmp_path / "none.sqlite3"), name)
    assert not (tmp_path / "none.sqlite3").exists()
