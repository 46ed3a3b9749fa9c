"""`python -m demo.run` as CI runs it: it ends by itself and leaves nothing running."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import psutil
import pytest

from tests.repo.tree import ROOT

pytestmark = pytest.mark.mesh

DEMO_SECONDS = 240.0
MARK = "MESHNET_TEST_MARK"


def _marked(mark: str) -> Iterator[psutil.Process]:
    """Every process that inherited this mark, whoever its parent is by now."""
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == mark:
                yield process
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            continue


def _start(mark: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        (sys.executable, "-m", "demo.run"),
        cwd=ROOT,
        env={**os.environ, MARK: mark},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_the_demo_answers_and_leaves_nothing_running() -> None:
    demo = _start("answers")
    printed, _ = demo.communicate(timeout=DEMO_SECONDS)
    assert demo.returncode == 0, printed
    assert "Paris" in printed
    assert "30/30" in printed
    assert "tokens/s" in printed
    assert list(_marked("answers")) == []


def test_an_interrupted_demo_leaves_nothing_running() -> None:
    demo = _start("interrupted")
    deadline = time.monotonic() + DEMO_SECONDS
    while len(list(_marked("interrupted"))) < 4 and time.monotonic() < deadline:
        time.sleep(0.1)
    demo.send_signal(signal.SIGINT)
    printed, _ = demo.communicate(timeout=30)
    assert demo.returncode == 128 + signal.SIGINT, printed
    assert list(_marked("interrupted")) == []
