import asyncio

from meshnet_tracker import public_names
from meshnet_tracker.models import NameBook
from meshnet_tracker.public_names import PublicNames
from meshnet_tracker.records import PresetRecord
from meshnet_tracker.store.store import Store
from tests.tracker.builders import NOW, preset


async def test_aliases_and_canaries_are_read_together(store: Store) -> None:
    await store.add_preset(preset(), NOW)
    canary = preset("next")
    await store.add_preset(PresetRecord(canary.preset, canary.unserved, NOW, is_canary=True), NOW)
    await store.aliases.set("chat", "tiny", NOW)
    assert await PublicNames(store).book() == NameBook({"chat": "tiny"}, frozenset({"next"}))


async def test_a_change_that_was_told_is_seen_at_once(store: Store) -> None:
    names = PublicNames(store)
    await store.add_preset(preset(), NOW)
    assert await names.book() == NameBook()
    await store.aliases.set("chat", "tiny", NOW)
    names.forget()
    assert (await names.book()).aliases == {"chat": "tiny"}


async def test_a_change_that_nobody_told_is_seen_by_itself(store: Store) -> None:
    names = PublicNames(store)
    await store.add_preset(preset(), NOW)
    assert await names.book() == NameBook()
    await store.aliases.set("chat", "tiny", NOW)
    async with asyncio.timeout(public_names.FRESH_SECONDS + 5):
        while True:
            if (await names.book()).aliases:
                break
            await asyncio.sleep(0.01)


async def test_many_readers_share_one_reading(store: Store) -> None:
    names = PublicNames(store)
    async with asyncio.TaskGroup() as tasks:
        readings = [tasks.create_task(names.book()) for _ in range(10)]
    assert len({id(reading.result()) for reading in readings}) == 1
