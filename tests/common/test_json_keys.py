import pytest

from meshnet_common.json_keys import doubled_key


@pytest.mark.parametrize(
    ("keys", "doubled"), [("", None), ("ab", None), ("aba", "a"), ("abbaa", "a")]
)
def test_a_key_that_comes_more_than_once_is_named(keys: str, doubled: str | None) -> None:
    assert doubled_key([(key, number) for number, key in enumerate(keys)]) == doubled
