import os
import select
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


def started(work: Callable[[], None], words: Path = Path(os.devnull)) -> Child:
    child = run_in_child(work, words)
    assert child is not None
    return child


def test_a_child_works_at_a_low_priority(tmp_path: Path) -> None:
    note = tmp_path / "note"

    def tell() -> None:
        note.write_text(str(os.nice(0)))

    child = started(tell)
    wait_until(lambda: not child.is_running())
    assert note.read_text() == str(LOW_PRIORITY)


def test_a_child_that_fails_says_why_and_its_parent_goes_on(tmp_path: Path) -> None:
    def fail() -> None:
        os.system("echo no such instruction; echo >&2; echo in line 7 >&2")
        raise RuntimeError("no code")

    child = started(fail, tmp_path / "words")
    wait_until(lambda: not child.is_running())
    assert child.last_words().endswith("RuntimeError: no code")
    assert "no such instruction" in (tmp_path / "words").read_text()
    assert child.exit_code == 1


def test_a_child_that_is_killed_says_so(tmp_path: Path) -> None:
    child = started(lambda: time.sleep(DEADLINE_SECONDS), tmp_path / "words")
    child.kill()
    assert child.last_words() == "ended by signal 9"
    (tmp_path / "words").unlink(missing_ok=True)
    assert child.last_words() == "ended by signal 9"


def test_a_parent_can_wait_for_the_end_of_a_child(tmp_path: Path) -> None:
    go_on = tmp_path / "go on"

    def wait() -> None:
        # Whatever it starts must not hold its lifeline.
        os.system(f"sleep {DEADLINE_SECONDS} & echo $! > {tmp_path / 'pid'}")
        wait_until(go_on.exists)

    child = started(wait)
    wait_until((tmp_path / "pid").exists)
    assert select.select((child.lifeline,), (), (), 0.0)[0] == []
    go_on.touch()
    assert select.select((child.lifeline,), (), (), DEADLINE_SECONDS)[0] == [child.lifeline]
    wait_until(lambda: not child.is_running())
    os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)


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
