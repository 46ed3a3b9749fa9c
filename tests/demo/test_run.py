"""`python -m demo.run` as CI runs it: it ends by itself and leaves nothing running."""

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import BinaryIO

import psutil
import pytest

from tests.repo.tree import ROOT

pytestmark = pytest.mark.mesh

DEMO_SECONDS = 240.0
MARK = "MESHNET_TEST_MARK"
CTRL_C = b"\x03"


def _marked(mark: str) -> Iterator[psutil.Process]:
    """Every process that inherited this mark, whoever its parent is by now."""
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == mark:
                yield process
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            continue


@pytest.fixture
def mark() -> Iterator[str]:
    """A mark for all processes of one test; whatever a failing test leaves is ended."""
    mark = f"{os.getpid()}-{time.monotonic_ns()}"
    yield mark
    for process in _marked(mark):
        process.kill()


def _start(mark: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        (sys.executable, "-m", "demo.run"),
        cwd=ROOT,
        env={**os.environ, MARK: mark, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_the_demo_answers_and_leaves_nothing_running(mark: str) -> None:
    demo = _start(mark)
    printed, _ = demo.communicate(timeout=DEMO_SECONDS)
    assert demo.returncode == 0, printed
    assert "Paris" in printed
    assert "30/30" in printed
    assert "tokens/s" in printed
    assert list(_marked(mark)) == []


def test_on_a_screen_it_stays_up_until_ctrl_c(mark: str) -> None:
    ours, theirs = os.openpty()
    # The first terminal that a session's leader opens becomes its own, with Ctrl-C.
    shell = f"exec {sys.executable} -m demo.run <>{os.ttyname(theirs)} >&0 2>&0"
    demo = subprocess.Popen(
        ("bash", "-c", shell),
        cwd=ROOT,
        env={**os.environ, MARK: mark, "TERM": "xterm", "COLUMNS": "200"},
        start_new_session=True,
    )
    with os.fdopen(ours, "r+b", buffering=0) as screen:
        printed = _read_until(screen, "END\r\n")
        answer = _run_snippet(printed)
        screen.write(CTRL_C)
        printed += _read_until(screen, "stopping")
        assert demo.wait(timeout=30) == 0, printed
    os.close(theirs)
    assert "Shakespeare" in answer
    assert list(_marked(mark)) == []


def _read_until(screen: BinaryIO, text: str) -> str:
    """Read a pseudo-terminal until it shows this text, or the program ends."""
    shown = ""
    deadline = time.monotonic() + DEMO_SECONDS
    while text not in shown and time.monotonic() < deadline:
        readable, _, _ = select.select([screen], [], [], 1.0)
        with suppress(OSError):  # Linux says so when the other end is closed.
            shown += screen.read(4096).decode(errors="replace") if readable else ""
    assert text in shown, shown
    return shown


def _run_snippet(printed: str) -> str:
    """Paste what the demo offers for copying into a shell."""
    start = printed.index(f"{sys.executable} - <<'END'")
    snippet = printed[start:].replace("\r\n", "\n")
    return subprocess.run(
        ("bash", "-c", snippet), check=True, capture_output=True, text=True, timeout=60
    ).stdout


def test_an_interrupted_demo_leaves_nothing_running(mark: str) -> None:
    demo = _start(mark)
    deadline = time.monotonic() + DEMO_SECONDS
    while len(list(_marked(mark))) < 4 and time.monotonic() < deadline:
        time.sleep(0.1)
    demo.send_signal(signal.SIGINT)
    printed, _ = demo.communicate(timeout=30)
    assert demo.returncode == 128 + signal.SIGINT, printed
    assert list(_marked(mark)) == []


def test_a_failing_program_ends_the_demo_with_its_log(mark: str) -> None:
    demo = _start(mark, MESHNET_TRACKER_HEADROOM_SHARE="0.99")
    printed, _ = demo.communicate(timeout=DEMO_SECONDS)
    assert demo.returncode == 1
    assert "worker-1 ended with status 5" in printed
    assert "Not even one layer fits" in printed
    assert list(_marked(mark)) == []
