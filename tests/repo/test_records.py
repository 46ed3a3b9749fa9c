"""The decision records are numbered without gaps: what was decided, why, and what follows."""

import re
from pathlib import Path

import pytest

from tests.repo.tree import ROOT, read, repository_files

MOST_LINES = 30
SECTIONS = ["## Context", "## Decision", "## Consequences"]
RECORDS = [path for path in repository_files() if path.parent.as_posix() == "docs/adr"]


def test_records_are_numbered_without_gaps() -> None:
    numbers = [path.name[:5] for path in RECORDS]
    assert numbers == [f"{number:04d}-" for number in range(1, len(RECORDS) + 1)]


@pytest.mark.parametrize("record", RECORDS, ids=lambda path: path.stem)
def test_a_record_is_short_and_has_its_three_sections(record: Path) -> None:
    lines = read(record).splitlines()
    assert re.fullmatch(rf"# {int(record.name[:4])}\. \S.*", lines[0])
    assert [line for line in lines if line.startswith("## ")] == SECTIONS
    assert len(lines) <= MOST_LINES


def test_the_changelog_has_a_place_for_what_is_not_released() -> None:
    assert "## [Unreleased]" in (ROOT / "CHANGELOG.md").read_text()
