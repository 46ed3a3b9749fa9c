from pathlib import Path

import pytest

from meshnet_tracker.keyring import list_keys, revoke_keys, rotate_keys
from meshnet_tracker.opening import make_store, open_store


@pytest.fixture
async def database(tmp_path: Path) -> str:
    name = str(tmp_path / "t.sqlite3")
    async with make_store(name):
        return name


async def test_keys_are_listed_newest_first_with_their_end(database: str) -> None:
    assert "No keys yet" in (await list_keys(database))[0]
    for _ in range(2):
        await rotate_keys(database)
    newest, older = await list_keys(database)
    assert newest.endswith("  signs")
    assert "verifies until" in older


async def test_a_rotation_names_the_key_that_signs_now(database: str) -> None:
    await rotate_keys(database)
    said, _ = await rotate_keys(database)
    async with open_store(database) as store:
        newest, _ = await store.signing_keys()
    assert said.startswith(f"Key {newest.key_id} signs from now on")


async def test_of_revoked_keys_none_is_left(database: str) -> None:
    for _ in range(2):
        await rotate_keys(database)
    said, _ = await revoke_keys(database)
    (left,) = await list_keys(database)
    assert said.split()[1] == left.split()[0]
