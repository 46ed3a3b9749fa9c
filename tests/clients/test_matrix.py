import sys

import pytest

from tests.clients.matrix import CUT, CheckLine, run_program

LINE = '{"check": "chat", "outcome": "passed"}'
PASSED = CheckLine("chat", "passed")


def lines_of(program: str, seconds: float = 60.0) -> list[CheckLine]:
    return run_program((sys.executable, "-c", program), seconds)


def test_what_a_program_says_of_its_checks_is_read() -> None:
    assert lines_of(f"print('words'); print('{LINE}')") == [PASSED]


@pytest.mark.parametrize(
    ("rest", "why"),
    [("raise OSError('no disk')", "no disk"), ("raise SystemExit(3)", LINE)],
)
def test_a_program_that_fails_keeps_what_it_has_said(rest: str, why: str) -> None:
    passed, failed = lines_of(f"print('{LINE}')\n{rest}")
    assert passed == PASSED
    assert (failed.check, failed.outcome) == ("its program", "failed")
    assert why in failed.why


def test_a_program_that_says_nothing_has_failed() -> None:
    (failed,) = lines_of("pass")
    assert (failed.outcome, failed.why) == ("failed", "It said nothing.")


def test_a_program_without_end_keeps_what_it_has_said() -> None:
    lines = lines_of(f"print('{LINE}', flush=True)\nwhile True: pass", seconds=2.0)
    assert lines[-1] == CheckLine("its program", "failed", "It was not done after 2 s.")
    assert lines[:-1] in ([PASSED], [])


@pytest.mark.parametrize(
    ("check", "why", "may_fail"),
    [
        ("standard: TestChat.test_json_mode", "KeyError", True),
        ("standard: TestChat.test_structured_output", f"Could not parse: {CUT}", True),
        ("standard: TestChat.test_structured_output", "KeyError", False),
        ("json", f"Could not parse: {CUT}", False),
        ("its program", "It said nothing.", False),
    ],
)
def test_only_standard_tests_may_fail_by_the_small_model(
    check: str, why: str, may_fail: bool
) -> None:
    assert CheckLine(check, "failed", why).may_fail == may_fail
