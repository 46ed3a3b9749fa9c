import json

import pytest

from meshnet_tracker.tables import duration, json_lines, size, table


def test_columns_are_as_wide_as_their_widest_cell() -> None:
    assert table(("name", "n"), [("a", "1"), ("longer", "22")]) == [
        "name    n",
        "a       1",
        "longer  22",
    ]


def test_json_is_what_was_put_in() -> None:
    lines = json_lines({"workers": [1, 2]})
    assert len(lines) > 1
    assert json.loads("\n".join(lines)) == {"workers": [1, 2]}


@pytest.mark.parametrize(
    ("count", "written"), [(0, "0 B"), (1536, "1.5 KiB"), (3 << 30, "3.0 GiB"), (5e12, "4.5 TiB")]
)
def test_bytes_have_the_unit_that_fits(count: float, written: str) -> None:
    assert size(count) == written


@pytest.mark.parametrize(
    ("seconds", "written"), [(0.4, "0.4 s"), (119, "119.0 s"), (150, "2 min"), (1e6, "12 d")]
)
def test_a_duration_has_one_unit(seconds: float, written: str) -> None:
    assert duration(seconds) == written
