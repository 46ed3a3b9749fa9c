from meshnet_tracker.records import SigningKey
from meshnet_tracker.store.store import Store
from tests.tracker.builders import NOW


async def test_the_first_key_offered_is_the_key_for_good(store: Store) -> None:
    first = SigningKey("k1", b"1" * 32)
    assert await store.signing_key(first, NOW) == first
    assert await store.signing_key(SigningKey("k2", b"2" * 32), NOW + 1) == first


def test_a_key_does_not_show_its_secret() -> None:
    assert "111" not in repr(SigningKey("k1", b"1" * 32))
