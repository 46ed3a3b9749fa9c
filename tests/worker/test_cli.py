import click
import pytest
from click.testing import CliRunner

from meshnet_worker.cli import main, start

NUMBERS = (click.types.IntParamType, click.types.FloatParamType)
WITH_WORDS = {"threads", "vram", "disk_budget"}
NUMERIC_OPTIONS = [
    option.opts[0]
    for option in start.params
    if isinstance(option.type, NUMBERS) or option.name in WITH_WORDS
]


@pytest.mark.parametrize("text", ["nan", "-inf", "inf", "1e999", "-1", "9" * 5000])
@pytest.mark.parametrize("option", NUMERIC_OPTIONS)
def test_a_number_that_is_out_of_all_bounds_is_a_wrong_use(option: str, text: str) -> None:
    ran = CliRunner().invoke(main, ["start", option, text])
    assert (ran.exit_code, type(ran.exception)) == (2, SystemExit)
    assert option in ran.output


def test_the_options_that_take_a_number_are_found() -> None:
    assert {"--port", "--kv-wait-seconds", "--grace-seconds", "--threads"} <= set(NUMERIC_OPTIONS)
