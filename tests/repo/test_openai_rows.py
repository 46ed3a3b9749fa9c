"""Each row of the public API's rules names the test that holds it, and that test is there."""

import ast
from functools import cache
from pathlib import Path

import pytest

from tests.repo.tree import read

ROWS = Path("docs/openai-rows.md")
SECTIONS = {
    "Endpoints": 12,
    "Parameters": 15,
    "Errors": 20,
    "Streams": 12,
    "Embeddings": 4,
    "Waiting": 11,
    "Our own stack": 6,
    "Public bug reports, by number": 28,
}
"""How many rows each has at least."""
BUG_REPORTS = [str(number) for number in range(1, 56, 2)]


def rows() -> dict[str, list[tuple[str, ...]]]:
    """The rows of each section: what, in which module, and the test's name."""
    found: dict[str, list[tuple[str, ...]]] = {}
    section = ""
    for line in read(ROWS).splitlines():
        if line.startswith("## "):
            section = line.removeprefix("## ")
        elif line.startswith("| ") and line != "| row | module | test |":
            cells = tuple(cell.strip() for cell in line.strip("|").split("|"))
            found.setdefault(section, []).append(cells)
    return found


@cache
def names_in(module: str) -> frozenset[str]:
    tree = ast.parse(read(Path(module)))
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return frozenset(node.name for node in tree.body if isinstance(node, functions))


@pytest.mark.parametrize("section", SECTIONS)
def test_every_row_names_a_test_that_is_there(section: str) -> None:
    named = rows()[section]
    missing = [
        f"{what}: {module}::{test}"
        for what, module, test in named
        if f"test_{test}" not in names_in(module)
    ]
    assert missing == []
    assert len({what for what, _, _ in named}) == len(named) >= SECTIONS[section]


def test_every_bug_report_has_its_row() -> None:
    assert [what for what, _, _ in rows()["Public bug reports, by number"]] == BUG_REPORTS
