import json
from dataclasses import replace
from pathlib import Path

import pytest

from meshnet_common.ids import WorkerId
from meshnet_tracker.mesh_report import show_coverage, show_workers
from meshnet_tracker.models import UnknownModelError
from meshnet_tracker.store.store import Store
from tests.tracker.builders import NOW, preset, shard
from tests.tracker.store.meshes import join


@pytest.fixture
def database(tmp_path: Path) -> str:
    return str(tmp_path / "tracker.sqlite3")


async def test_each_worker_is_a_row_with_what_it_serves(store: Store, database: str) -> None:
    await store.add_preset(preset(), NOW)
    await join(store, "w1", shard(0, 4))
    await join(store, "w2")
    await store.drains.set(WorkerId("w2"), NOW)
    heading, first, second = await show_workers(database, as_json=False)
    assert heading.split()[:3] == ["worker", "state", "layers"]
    assert first.startswith("w1      live ")
    assert "tiny bfloat16 [0, 4)" in first
    assert second.startswith("w2      live (to be drained)")


async def test_a_machine_reads_what_the_trackers_list_tells(store: Store, database: str) -> None:
    await join(store, "w1", shard(0, 4))
    told = json.loads("\n".join(await show_workers(database, as_json=True)))
    (worker,) = told["workers"]
    assert (worker["worker_id"], worker["shards"][0]["end_layer"]) == ("w1", 4)


async def test_a_mesh_without_workers_says_how_to_begin(store: Store, database: str) -> None:
    assert await store.workers() == ()
    assert "meshnet-worker start" in (await show_workers(database, as_json=False))[0]


async def test_gaps_and_replicas_are_shown_for_each_variant(store: Store, database: str) -> None:
    await store.add_preset(preset(), NOW)
    await store.add_preset(replace(preset("next"), is_canary=True), NOW)
    await join(store, "w1", shard(0, 4))
    await join(store, "w2", shard(0, 2))
    lines = await show_coverage(database, None, as_json=False)
    assert lines[0].startswith("next: 6 layers missing, thinnest layer 0x, canary")
    assert lines[2:] == [
        "tiny: 2 layers missing, thinnest layer 0x; answers to tiny",
        "  [0, 2)  2x",
        "  [2, 4)  1x",
        "  [4, 6)  GAP",
    ]


async def test_one_model_can_be_asked_for_by_any_of_its_names(store: Store, database: str) -> None:
    for name in ("one", "other"):
        await store.add_preset(preset(name), NOW)
    await store.aliases.set("chat", "other", NOW)
    for name in ("other", "chat"):
        told = json.loads("\n".join(await show_coverage(database, name, as_json=True)))
        (variant,) = told["variants"]
        assert (variant["own_name"], variant["names"]) == ("other", ["other", "chat"])
    with pytest.raises(UnknownModelError):
        await show_coverage(database, "nothing", as_json=True)
