from meshnet_tracker.records import SigningKey
from meshnet_tracker.store.store import Store
from tests.tracker.builders import NOW


def key(name: str, made_at: float = NOW) -> SigningKey:
    return SigningKey(name, name[-1:].encode() * 32, made_at)


async def names(store: Store) -> list[str]:
    return [each.key_id for each in await store.signing_keys()]


async def test_a_first_key_is_kept_only_where_there_is_none(store: Store) -> None:
    await store.first_signing_key(key("k1"))
    await store.first_signing_key(key("k2", NOW + 1))
    assert await store.signing_keys() == (key("k1"),)


async def test_an_added_key_is_the_newest_also_by_a_clock_that_is_behind(store: Store) -> None:
    await store.first_signing_key(key("k1"))
    for name, made_at in (("k2", NOW), ("k3", NOW - 100), ("k4", NOW + 100)):
        await store.add_signing_key(key(name, made_at))
        assert (await names(store))[0] == name
    assert await names(store) == ["k4", "k3", "k2", "k1"]


async def test_only_the_named_keys_are_forgotten(store: Store) -> None:
    for name in ("k1", "k2", "k3"):
        await store.add_signing_key(key(name))
    await store.forget_signing_keys(["k1", "k2", "unknown"])
    assert await names(store) == ["k3"]


def test_a_key_does_not_show_its_secret() -> None:
    assert "111" not in repr(key("k1"))
