"""The verdict of a soak; the soak itself takes minutes and is run by hand."""

import json
from collections import Counter

import pytest

from demo.soak import report

STEADY = {"worker": 100}


@pytest.mark.parametrize(
    ("answers", "end", "status"),
    [
        (Counter(exact=5), STEADY, 0),
        (Counter(exact=5, wrong=1), STEADY, 1),
        (Counter(), STEADY, 1),
        (Counter(exact=5), {"worker": 200}, 1),
    ],
    ids=["good", "a wrong answer", "no answer", "a leak"],
)
def test_a_soak_passes_only_when_answers_are_exact_and_memory_is_steady(
    answers: Counter[str], end: dict[str, int], status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert report(answers, STEADY, end) == status
    summary = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert summary["growth"] == end["worker"] / STEADY["worker"]
