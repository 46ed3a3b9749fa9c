import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from meshnet_worker.engine.children import LOW_PRIORITY, Child, run_in_child

DEADLINE_SECONDS = 20.0


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def started(work: Callable[[], None]) -> Child:
    child = run_in_child(work)
    assert child is not None
    return child


def test_a_child_works_at_a_low_priority(tmp_path: Path) -> None:
    note = tmp_path / "note"

    def tell() -> None:
        note.write_text(str(os.nice(0)))

    child = started(tell)
    wait_until(lambda: not child.is_running())
    assert note.read_text() == str(LOW_PRIORITY)


def test_a_child_that_fails_ends_and_its_parent_goes_on() -> None:
    def fail() -> None:
        raise RuntimeError

    child = started(fail)
    wait_until(lambda: not child.is_running())


def test_a_child_holds_no_descriptor_of_its_parent() -> None:
    reading, writing = os.pipe()
    child = started(lambda: time.sleep(DEADLINE_SECONDS))
    os.close(writing)
    # The end of the stream comes, though the child lives.
    assert os.read(reading, 1) == b""
    assert child.is_running()
    child.kill()
    os.close(reading)


def test_a_child_is_ended_with_what_it_has_started(tmp_path: Path) -> None:
    note = tmp_path / "note"

    def start_another() -> None:
        os.system(f"echo $$ > {note}; exec sleep 60")

    child = started(start_another)
    wait_until(lambda: note.exists() and note.read_text().endswith("\n"))
    child.kill()
    assert not child.is_running()
    grandchild = int(note.read_text())
    wait_until(lambda: not _is_alive(grandchild))


def test_a_child_can_be_ended_at_once() -> None:
    for _ in range(5):
        began = time.monotonic()
        child = started(lambda: time.sleep(DEADLINE_SECONDS))
        child.kill()
        assert time.monotonic() - began < DEADLINE_SECONDS / 2


def test_a_child_that_somebody_else_waited_for_has_ended() -> None:
    child = started(lambda: None)
    os.waitpid(child.pid, 0)
    assert not child.is_running()
    child.kill()


def test_a_child_ends_with_its_parent(tmp_path: Path) -> None:
    note = tmp_path / "note"

    def live_on() -> None:
        note.write_text(str(os.getpid()))
        time.sleep(60)

    def start_another() -> None:
        started(live_on)
        time.sleep(60)

    child = started(start_another)
    wait_until(lambda: note.exists() and note.read_text().isdigit())
    os.kill(child.pid, signal.SIGKILL)
    grandchild = int(note.read_text())
    wait_until(lambda: not _is_alive(grandchild))
    assert not child.is_running()


def _is_alive(pid: int) -> bool:
    status = Path(f"/proc/{pid}/status")
    return status.exists() and "State:\tZ" not in status.read_text()
