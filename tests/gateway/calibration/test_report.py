import io
import tomllib

import msgspec
import pytest
from rich.console import Console

from meshnet_gateway.calibration.knee import Finding, Knee, Level, NotReached, Unusable
from meshnet_gateway.calibration.report import conclusion, level_table

LEVELS = [Level(4, 40.0, 0.5, 0.75, 0), Level(1, 10.0, 0.5, 0.625), Level(8, 40.0, 1.0, 1.5, 3, 2)]


def printed(finding: Finding) -> list[list[str]]:
    console = Console(file=io.StringIO(), width=100)
    console.print(level_table(LEVELS, finding, "chat"))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    rows = [line.split("│")[1:-1] for line in text.splitlines() if line.startswith("│")]
    return [[cell.strip() for cell in row] for row in rows]


def test_the_table_has_a_row_for_each_level_in_order_with_the_knee_marked() -> None:
    assert printed(Knee(4)) == [
        ["1", "10.0", "0.500", "0.625", "?", "0", ""],
        ["4", "40.0", "0.500", "0.750", "0", "0", "knee"],
        ["8", "40.0", "1.000", "1.500", "3", "2", ""],
    ]


def test_without_a_knee_none_is_marked() -> None:
    assert not any("knee" in row for row in printed(NotReached(8)))


@pytest.mark.parametrize("group", ["gpu1", "10.0.0.5", 'odd "name"'])
def test_the_lines_for_the_settings_can_be_read_as_they_are(group: str) -> None:
    _, in_file, variable = conclusion(Knee(6), group).splitlines()

    assert tomllib.loads(in_file) == {"gpu_concurrency_budgets": {group: 6}}
    name, _, value = variable.partition("=")
    assert name == "GPU_CONCURRENCY_BUDGETS"
    assert msgspec.json.decode(value.strip("'")) == {group: 6}


def test_what_was_not_found_is_said() -> None:
    assert "no knee up to 48" in conclusion(NotReached(48), "gpu")
    assert "budgets" not in conclusion(Unusable(), "gpu")
