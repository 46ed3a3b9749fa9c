import click
import pytest

from meshnet_common.edge.ranges import FiniteRange


@pytest.mark.parametrize("text", ["nan", "NaN", "-nan", "inf", "1e999", "-inf", "", "x"])
def test_what_is_no_finite_number_is_in_no_range(text: str) -> None:
    for numbers in (FiniteRange(0), FiniteRange(max=5), FiniteRange(0, 5, min_open=True)):
        with pytest.raises(click.BadParameter):
            numbers.convert(text, None, None)


def test_a_range_keeps_its_bounds() -> None:
    numbers = FiniteRange(0, 5, min_open=True)
    assert numbers.convert("5", None, None) == 5
    for text in ("0", "5.1"):
        with pytest.raises(click.BadParameter):
            numbers.convert(text, None, None)
