from dataclasses import replace

import pytest

from meshnet_common.ids import PresetName
from meshnet_tracker.models import served_models
from meshnet_tracker.records import AliasRecord
from meshnet_tracker.store.errors import AliasError, PresetExistsError, PresetInUseError
from meshnet_tracker.store.store import Store
from tests.tracker.builders import NOW, preset
from tests.tracker.store.meshes import preset_version


@pytest.fixture
async def two_versions(store: Store) -> Store:
    for name in ("v1", "v2"):
        await store.add_preset(preset(name, quantizations=("bfloat16", "float32")), NOW)
    return store


async def target_of(store: Store, name: str) -> str:
    return {alias.name: alias.target for alias in await store.aliases.all()}[name]


async def test_a_cut_over_keeps_what_was_before_and_a_rollback_swaps_back(
    two_versions: Store,
) -> None:
    aliases = two_versions.aliases
    assert await aliases.set("chat", "v1", NOW) == AliasRecord("chat", "v1", None, NOW)
    assert await aliases.set("chat", "v2", NOW + 1) == AliasRecord("chat", "v2", "v1", NOW + 1)
    assert await aliases.roll_back("chat", NOW + 2) == AliasRecord("chat", "v1", "v2", NOW + 2)
    assert await aliases.roll_back("chat", NOW + 3) == AliasRecord("chat", "v2", "v1", NOW + 3)
    assert await aliases.all() == (AliasRecord("chat", "v2", "v1", NOW + 3),)


async def test_setting_the_same_again_forgets_nothing(two_versions: Store) -> None:
    for target in ("v1", "v2", "v2"):
        await two_versions.aliases.set("chat", target, NOW)
    await two_versions.aliases.roll_back("chat", NOW)
    assert await target_of(two_versions, "chat") == "v1"


async def test_the_name_of_a_model_can_be_cut_over_and_back(two_versions: Store) -> None:
    await two_versions.aliases.set("v1", "v2", NOW)
    await two_versions.aliases.roll_back("v1", NOW)
    assert await target_of(two_versions, "v1") == "v1"


async def test_an_alias_stands_for_a_models_own_name_only(two_versions: Store) -> None:
    await two_versions.aliases.set("chat", "v2-float32", NOW)
    for target in ("chat", "v3", "v1-nf4"):
        with pytest.raises(AliasError, match=target):
            await two_versions.aliases.set("other", target, NOW)
    with pytest.raises(AliasError, match="printable"):
        await two_versions.aliases.set("line\nbreak", "v1", NOW)


async def test_there_is_no_going_back_to_what_is_not_there(two_versions: Store) -> None:
    aliases = two_versions.aliases
    with pytest.raises(AliasError, match="nothing before"):
        await aliases.roll_back("chat", NOW)
    await aliases.set("chat", "v1", NOW)
    with pytest.raises(AliasError, match="nothing before"):
        await aliases.roll_back("chat", NOW)
    await aliases.set("chat", "v2", NOW)
    await two_versions.remove_preset(PresetName("v1"))
    with pytest.raises(AliasError, match="v1, which it stood for before"):
        await aliases.roll_back("chat", NOW)
    assert await target_of(two_versions, "chat") == "v2"


async def test_a_model_that_answers_under_an_alias_is_not_removed(two_versions: Store) -> None:
    await two_versions.aliases.set("chat", "v1-float32", NOW)
    with pytest.raises(PresetInUseError, match="chat"):
        await two_versions.remove_preset(PresetName("v1"))
    await two_versions.aliases.remove("chat")
    await two_versions.remove_preset(PresetName("v1"))
    with pytest.raises(AliasError, match="no alias chat"):
        await two_versions.aliases.remove("chat")


async def test_no_alias_makes_a_canary_public_under_its_own_name(two_versions: Store) -> None:
    await two_versions.add_preset(replace(preset("v3"), is_canary=True), NOW)
    with pytest.raises(AliasError, match="Canary"):
        await two_versions.aliases.set("v3", "v3", NOW)
    await two_versions.aliases.set("v3", "v1", NOW)
    # Before that, clients who asked for v3 found nothing; so they do again.
    assert (await two_versions.aliases.roll_back("v3", NOW)).target == "v3"
    book = await two_versions.aliases.book()
    served = {model.name: model for model in served_models([preset("v3").preset])}
    assert not book.is_public(served["v3"], "v3")
    assert book.listed_as(served["v3"]) == ()


async def test_a_model_that_stands_for_itself_can_be_removed(two_versions: Store) -> None:
    await two_versions.aliases.set("v1", "v1", NOW)
    await two_versions.remove_preset(PresetName("v1"))


async def test_a_new_model_does_not_take_an_aliass_name(two_versions: Store) -> None:
    await two_versions.aliases.set("chat", "v1", NOW)
    with pytest.raises(PresetExistsError, match="chat"):
        await two_versions.add_preset(preset("chat"), NOW)


async def test_running_trackers_hear_of_every_change(two_versions: Store) -> None:
    aliases = two_versions.aliases
    versions = [await preset_version(two_versions)]
    for target in ("v1", "v2"):
        await aliases.set("chat", target, NOW)
        versions.append(await preset_version(two_versions))
    await aliases.roll_back("chat", NOW)
    versions.append(await preset_version(two_versions))
    await aliases.remove("chat")
    versions.append(await preset_version(two_versions))
    assert versions == sorted(set(versions))


async def test_all_names_are_read_at_one_instant(two_versions: Store) -> None:
    await two_versions.aliases.set("chat", "v1", NOW)
    await two_versions.add_preset(replace(preset("v3"), is_canary=True), NOW)
    book = await two_versions.aliases.book()
    assert (book.aliases, book.canaries) == ({"chat": "v1"}, frozenset({"v3"}))


@pytest.mark.parametrize("name", ["", "a\0b", "x" * 1000])
async def test_what_cannot_be_a_name_is_refused_before_the_database_sees_it(
    store: Store, name: str
) -> None:
    await store.add_preset(preset(), NOW)
    for change in (
        store.aliases.set(name, "tiny", NOW),
        store.aliases.roll_back(name, NOW),
        store.aliases.remove(name),
    ):
        with pytest.raises(AliasError, match="printable"):
            await change
