import pytest

from meshnet_common.ids import WorkerId
from meshnet_common.shard_range import ShardRange
from meshnet_tracker.planning.snapshot import Pin, VariantKey
from meshnet_tracker.store.errors import PinError
from meshnet_tracker.store.store import Store
from tests.tracker.builders import MODEL, NOW, preset
from tests.tracker.store.meshes import join, preset_version

W1, W2 = WorkerId("w1"), WorkerId("w2")


def pin(worker_id: WorkerId = W1, start: int = 0, end: int = 3, key: VariantKey = MODEL) -> Pin:
    return Pin(worker_id, key, ShardRange(start, end))


async def test_a_pin_is_kept_shown_to_the_planner_and_taken_back(store: Store) -> None:
    await store.add_preset(preset(), NOW)
    await store.pins.set(pin(), NOW)
    assert await store.pins.all() == (pin(),)
    assert (await store.load_snapshot()).snapshot.pins == (pin(),)
    assert await store.pins.remove(W1) == 1
    assert await store.pins.all() == ()
    assert await store.pins.remove(W1) == 0


async def test_the_last_pin_to_a_variant_counts(store: Store) -> None:
    await store.add_preset(preset(), NOW)
    for end in (3, 4):
        await store.pins.set(pin(end=end), NOW)
    await store.pins.set(pin(W2), NOW)
    assert await store.pins.all() == (pin(end=4), pin(W2))


async def test_one_of_several_pins_of_a_worker_can_be_taken_back(store: Store) -> None:
    other = VariantKey("tiny", "float32")
    await store.add_preset(preset(quantizations=("bfloat16", "float32")), NOW)
    await store.pins.set(pin(), NOW)
    await store.pins.set(pin(start=3, end=6, key=other), NOW)
    assert await store.pins.remove(W1, MODEL) == 1
    assert await store.pins.all() == (pin(start=3, end=6, key=other),)


async def test_only_layers_that_there_are_can_be_pinned(store: Store) -> None:
    await store.add_preset(preset(), NOW)
    with pytest.raises(PinError, match="layers 0 to 5"):
        await store.pins.set(pin(end=7), NOW)
    with pytest.raises(PinError, match="not served as nf4"):
        await store.pins.set(pin(key=VariantKey("tiny", "nf4")), NOW)
    assert await store.pins.all() == ()


async def test_who_is_to_be_drained_is_told_to_the_planner_until_it_is_taken_back(
    store: Store,
) -> None:
    await join(store, "w1")
    await join(store, "w2")
    for _ in range(2):
        await store.drains.set(W1, NOW)
    views = (await store.load_snapshot()).snapshot.workers
    assert [(view.worker_id, view.retiring) for view in views] == [("w1", True), ("w2", False)]
    assert await store.drains.all() == {W1}
    assert [await store.drains.remove(W1) for _ in range(2)] == [True, False]
    assert await store.drains.all() == frozenset()


async def test_running_trackers_hear_of_every_change(store: Store) -> None:
    await store.add_preset(preset(), NOW)
    versions = [await preset_version(store)]
    await store.pins.set(pin(), NOW)
    versions.append(await preset_version(store))
    await store.pins.remove(W1)
    versions.append(await preset_version(store))
    await store.drains.set(W1, NOW)
    versions.append(await preset_version(store))
    await store.drains.remove(W1)
    versions.append(await preset_version(store))
    assert versions == sorted(set(versions))


@pytest.mark.parametrize("name", ["", "w1\0", "x" * 129])
async def test_what_no_worker_can_be_called_is_refused_before_the_database_sees_it(
    store: Store, name: str
) -> None:
    await store.add_preset(preset(), NOW)
    worker_id = WorkerId(name)
    for change in (
        store.pins.set(Pin(worker_id, MODEL, ShardRange(0, 3)), NOW),
        store.drains.set(worker_id, NOW),
    ):
        with pytest.raises(PinError, match="can be called"):
            await change
    assert not await store.pins.remove(worker_id)
    assert not await store.drains.remove(worker_id)
