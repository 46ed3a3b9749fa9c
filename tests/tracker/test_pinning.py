import json
from pathlib import Path

import pytest

from meshnet_tracker.pinning import (
    add_drain,
    add_pin,
    list_drains,
    list_pins,
    remove_drain,
    remove_pin,
)
from meshnet_tracker.store.errors import PinError
from meshnet_tracker.store.store import Store
from tests.tracker.builders import NOW, preset, shard
from tests.tracker.store.meshes import join


@pytest.fixture
async def database(store: Store, tmp_path: Path) -> str:
    """A Mesh with one Worker, `w1`."""
    await store.add_preset(preset(quantizations=("bfloat16", "float32")), NOW)
    await join(store, "w1", shard(0, 6))
    return str(tmp_path / "tracker.sqlite3")


async def test_a_pin_is_made_listed_and_taken_back(database: str) -> None:
    said = await add_pin(database, "w1", "tiny-float32", 2, 4)
    assert said == ["w1 serves tiny-float32 [2, 4) from now on."]
    row = (await list_pins(database, as_json=False))[1]
    assert row.split(maxsplit=3) == ["w1", "tiny", "float32", "[2, 4)"]
    (pin,) = json.loads("\n".join(await list_pins(database, as_json=True)))["pins"]
    assert (pin["worker_id"], pin["start_layer"]) == ("w1", 2)
    assert await remove_pin(database, "w1") == ["w1 is not pinned any more."]
    assert await list_pins(database, as_json=False) == ["No worker is pinned."]


async def test_a_worker_may_be_pinned_before_it_joins(database: str) -> None:
    assert (await add_pin(database, "w9", "tiny", 0, 2))[1] == "No worker w9 has joined yet."


@pytest.mark.parametrize(
    ("model", "start", "end", "said"),
    [("nothing", 0, 2, "No model"), ("tiny", 2, 2, "comes before"), ("tiny", 0, 7, "0 to 5")],
)
async def test_a_pin_that_makes_no_sense_is_refused(
    database: str, model: str, start: int, end: int, said: str
) -> None:
    with pytest.raises(PinError, match=said):
        await add_pin(database, "w1", model, start, end)
    with pytest.raises(PinError, match="not pinned"):
        await remove_pin(database, "w1")


async def test_a_worker_is_drained_and_taken_back(database: str) -> None:
    assert await list_drains(database, as_json=False) == ["No worker is to be drained."]
    assert (await add_drain(database, "w1"))[0].startswith("w1 is to be drained")
    assert await list_drains(database, as_json=False) == ["w1"]
    assert json.loads("\n".join(await list_drains(database, as_json=True))) == {"workers": ["w1"]}
    assert await remove_drain(database, "w1") == ["w1 serves again."]
    for change in (remove_drain(database, "w1"), add_drain(database, "w9")):
        with pytest.raises(PinError):
            await change


@pytest.mark.parametrize("worker", ["", "a b", "x" * 129, "../x", "w1\0", "\u00fc"])
async def test_who_cannot_be_a_worker_is_neither_pinned_nor_drained(
    database: str, worker: str
) -> None:
    for change in (
        add_pin(database, worker, "tiny", 0, 3),
        remove_pin(database, worker),
        add_drain(database, worker),
        remove_drain(database, worker),
    ):
        with pytest.raises(PinError):
            await change
    assert await list_pins(database, as_json=False) == ["No worker is pinned."]


@pytest.mark.parametrize("end", [7, 2**31, 2**63, 10**30])
async def test_a_pin_past_the_last_layer_is_refused_however_far(database: str, end: int) -> None:
    with pytest.raises(PinError, match="layers 0 to 5 only"):
        await add_pin(database, "w1", "tiny", 0, end)
    assert await list_pins(database, as_json=False) == ["No worker is pinned."]
