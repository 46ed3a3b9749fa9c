import json
from pathlib import Path

import pytest

from meshnet_tracker.naming import list_aliases, remove_alias, roll_back_alias, set_alias
from meshnet_tracker.store.errors import AliasError
from meshnet_tracker.store.store import Store
from tests.tracker.builders import NOW, preset, shard
from tests.tracker.store.meshes import join


@pytest.fixture
async def database(store: Store, tmp_path: Path) -> str:
    """A Mesh that serves `tiny`, and knows `next` of which nobody has a Layer."""
    for name in ("tiny", "next"):
        await store.add_preset(preset(name), NOW)
    await join(store, "w1", shard(0, 6))
    return str(tmp_path / "tracker.sqlite3")


async def test_a_cut_over_is_refused_while_layers_are_missing(database: str) -> None:
    with pytest.raises(AliasError, match="none of its layers 0-5 has a ready worker"):
        await set_alias(database, "chat", "next", force=False)
    assert "No aliases" in (await list_aliases(database, as_json=False))[0]


async def test_what_answered_before_is_told_at_every_change(database: str) -> None:
    said = [
        await set_alias(database, "chat", "tiny", force=False),
        await set_alias(database, "chat", "next", force=True),
        await roll_back_alias(database, "chat"),
    ]
    assert said == [
        ["chat is answered by tiny from now on."],
        ["chat is answered by next from now on. Before: tiny."],
        ["chat is answered by tiny again. Before: next."],
    ]
    assert (await list_aliases(database, as_json=False))[1].split() == ["chat", "tiny", "next"]
    (alias,) = json.loads("\n".join(await list_aliases(database, as_json=True)))["aliases"]
    assert (alias["target"], alias["prior"]) == ("tiny", "next")


async def test_an_alias_can_be_forgotten(database: str) -> None:
    await set_alias(database, "chat", "tiny", force=False)
    assert await remove_alias(database, "chat") == ["Removed the alias chat."]
    with pytest.raises(AliasError):
        await remove_alias(database, "chat")


@pytest.mark.parametrize("force", [False, True])
async def test_only_a_model_can_answer(database: str, force: bool) -> None:
    with pytest.raises(AliasError, match="No model is served under its own name nothing"):
        await set_alias(database, "chat", "nothing", force=force)
