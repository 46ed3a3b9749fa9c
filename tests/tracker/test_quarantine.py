import pytest

from meshnet_common.openai.errors import ApiError
from meshnet_tracker.planning.snapshot import VariantKey
from meshnet_tracker.quarantine import MOST_REQUESTS, QUARANTINE_SECONDS, Quarantine

TINY, OTHER = VariantKey("tiny", "bfloat16"), VariantKey("other", "bfloat16")


def is_refused(quarantine: Quarantine, meaning: tuple[VariantKey, bytes], now: float) -> bool:
    try:
        quarantine.check(meaning, now)
    except ApiError:
        return True
    return False


def test_a_blamed_request_is_refused_for_a_while_and_no_other_one_is() -> None:
    quarantine = Quarantine()
    quarantine.put((TINY, b"a"), 100.0)
    assert is_refused(quarantine, (TINY, b"a"), 100.0)
    assert not is_refused(quarantine, (TINY, b"b"), 100.0)
    assert not is_refused(quarantine, (OTHER, b"a"), 100.0)
    assert not is_refused(quarantine, (TINY, b"a"), 100.0 + QUARANTINE_SECONDS)
    assert len(quarantine) == 0


def test_the_refusal_says_for_how_long_and_that_clients_must_not_ask_again() -> None:
    quarantine = Quarantine()
    quarantine.put((TINY, b"a"), 100.0)
    with pytest.raises(ApiError, match="for 280 seconds") as refused:
        quarantine.check((TINY, b"a"), 120.5)
    assert (refused.value.status, refused.value.body.code) == (502, "upstream_failed")
    assert refused.value.headers == {"x-should-retry": "false", "Retry-After": "280"}


def test_one_that_is_blamed_again_is_refused_anew() -> None:
    quarantine = Quarantine()
    for now in (100.0, 200.0):
        quarantine.put((TINY, b"a"), now)
    assert is_refused(quarantine, (TINY, b"a"), 150.0 + QUARANTINE_SECONDS)


def test_many_of_them_take_little_memory_and_old_ones_none() -> None:
    quarantine = Quarantine()
    for number in range(MOST_REQUESTS + 1):
        quarantine.put((TINY, str(number).encode()), 100.0)
    assert len(quarantine) == MOST_REQUESTS
    assert not is_refused(quarantine, (TINY, b"0"), 100.0)
    assert is_refused(quarantine, (TINY, b"1"), 100.0)
    quarantine.put((TINY, b"new"), 100.0 + QUARANTINE_SECONDS)
    assert len(quarantine) == 1
