"""Programs are started, watched and ended, with whatever they have started themselves."""

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from demo.processes import DeadlineError, ProgramFailedError, Programs, pause_seconds

# The ready file's path is the last argument of every program.
LISTENING = "import sys, time; open(sys.argv[-1], 'w').write('http://here\\n'); time.sleep(60)"
DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);" + LISTENING
FAILING = "import sys; print('no room here'); sys.exit(5)"
PARENT = (
    "import subprocess, sys, time;"
    "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']);"
    "open(sys.argv[-1], 'w').write(str(child.pid)); time.sleep(60)"
)


@pytest.fixture
def programs(tmp_path: Path) -> Iterator[Programs]:
    with Programs(tmp_path) as programs:
        yield programs


def _python(code: str) -> tuple[str, ...]:
    return (sys.executable, "-c", code)


def _exists(pid: int) -> bool:
    status = Path(f"/proc/{pid}/stat")
    return status.exists() and status.read_text().split()[2] != "Z"


def test_a_ready_program_has_the_url_it_wrote(programs: Programs) -> None:
    program = programs.start("listening", _python(LISTENING))
    programs.wait_until_ready(program)
    assert program.url == "http://here"


def test_a_program_that_ends_by_itself_is_an_error_with_its_log(programs: Programs) -> None:
    program = programs.start("failing", _python(FAILING))
    with pytest.raises(ProgramFailedError, match=r"failing ended with status 5:\n +no room here"):
        programs.wait_until_ready(program)


def test_waiting_ends_at_the_deadline_and_says_for_what(programs: Programs) -> None:
    programs.start("listening", _python(LISTENING))
    with pytest.raises(DeadlineError, match=r"the moon: not within 0\.1 s"):
        programs.wait_for(lambda: False, 0.1, "the moon")


def test_what_takes_long_is_looked_for_less_often_but_often_enough() -> None:
    pauses = [pause_seconds(waited) for waited in (0.0, 1.0, 5.0, 60.0, 600.0)]
    assert pauses == sorted(pauses)
    assert (pauses[0], pauses[-1]) == (0.05, 0.25)


def test_leaving_the_block_ends_every_program(tmp_path: Path) -> None:
    with Programs(tmp_path) as programs:
        started = [programs.start(name, _python(LISTENING)) for name in ("one", "two")]
        programs.wait_until_ready(*started)
    assert [program.has_ended() for program in started] == [True, True]


def test_a_program_that_ignores_sigterm_is_killed(programs: Programs) -> None:
    program = programs.start("deaf", _python(DEAF))
    programs.wait_until_ready(program)
    began = time.monotonic()
    programs.stop(program, seconds=0.2)
    assert program.process.returncode == -9
    assert time.monotonic() - began < 2


def test_what_a_program_started_ends_with_it(programs: Programs) -> None:
    program = programs.start("parent", _python(PARENT))
    programs.wait_until_ready(program)
    programs.wait_for(lambda: program.url, 5, "the child's id is written")
    child = int(program.url)
    os.kill(child, 0)
    programs.stop(program)
    programs.wait_for(lambda: not _exists(child), 5, "the child has ended")


def test_a_program_that_was_let_end_and_did_so_stops_no_wait(programs: Programs) -> None:
    program = programs.start("listening", _python(LISTENING))
    programs.wait_until_ready(program)
    programs.let_end(program, signal.SIGKILL)
    programs.wait_for(program.has_ended, 5, "it has ended")
