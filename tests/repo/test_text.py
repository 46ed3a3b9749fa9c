"""What no file of this repository may say: it must mean the same on every machine."""

import re

import pytest

from tests.repo.tree import ROOT, read, repository_files

# The brackets keep each pattern from finding itself.
FORBIDDEN = {
    "a path of one machine": r"(?<![\w.~])/(?:[w]ork|[r]oot|[h]ome|[U]sers|[t]mp)/",
    "a package index's host": (
        r"pypi[.]org|pythonhosted[.]|npmjs[.]|download[.]pytorch|deb[.]debian"
    ),
    "who or what wrote it": r"(?i)\b(?:[c]laude|[a]nthropic|[c]hatgpt|[c]opilot|ai [a]ssistant)",
    "where it was written": (
        r"(?i)\b(?:(?:this|the|our) (?:[s]andbox|[w]orkplace)|[s]ub-?agents?)\b"
    ),
    "a private key": r"-----BEGIN [A-Z ]*PRIVATE [K]EY-----",
}


def _is_text(content: bytes) -> bool:
    try:
        return "\0" not in content.decode()
    except UnicodeDecodeError:
        return False


def test_every_file_is_text() -> None:
    assert [str(p) for p in repository_files() if not _is_text((ROOT / p).read_bytes())] == []


@pytest.mark.parametrize("what", FORBIDDEN)
def test_no_file_says(what: str) -> None:
    pattern = re.compile(FORBIDDEN[what])
    found = [
        f"{path}:{number}: {line.strip()[:100]}"
        for path in repository_files()
        for number, line in enumerate(read(path).splitlines(), 1)
        if pattern.search(line)
    ]
    assert found == []
