import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from meshnet_tracker.planner_messages import (
    DatabaseAway,
    Opening,
    Planned,
    PlanRequest,
    decode_answer,
    encode_line,
)
from meshnet_tracker.planning.snapshot import PlannerPolicy
from meshnet_tracker.store.store import Store
from tests.tracker.builders import NOW, preset
from tests.tracker.store.meshes import join

END_SECONDS = 20.0


@pytest.fixture
def process() -> Iterator["subprocess.Popen[bytes]"]:
    command = (sys.executable, "-m", "meshnet_tracker.planner_process")
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as started:
        yield started
        started.kill()


def write(process: "subprocess.Popen[bytes]", *lines: bytes) -> None:
    assert process.stdin is not None
    process.stdin.write(b"".join(lines))
    process.stdin.flush()


def read(process: "subprocess.Popen[bytes]") -> bytes:
    assert process.stdout is not None
    return process.stdout.readline()


REQUEST = encode_line(PlanRequest(PlannerPolicy(), NOW))


async def test_each_request_is_answered_in_order(
    store: Store, tmp_path: Path, process: "subprocess.Popen[bytes]"
) -> None:
    await store.add_preset(preset(), NOW)
    await join(store, "w1")
    opening = encode_line(Opening(str(tmp_path / "tracker.sqlite3")))
    write(process, opening, REQUEST, REQUEST)
    for _ in range(2):
        answer = decode_answer(read(process))
        assert isinstance(answer, Planned)
        assert [order.worker_id for order in answer.directives] == ["w1"]


def test_it_goes_on_when_the_database_cannot_be_read(
    tmp_path: Path, process: "subprocess.Popen[bytes]"
) -> None:
    write(process, encode_line(Opening(str(tmp_path / "empty.sqlite3"))), REQUEST, REQUEST)
    for _ in range(2):
        assert isinstance(decode_answer(read(process)), DatabaseAway)


def test_it_ends_when_its_input_ends_and_not_at_ctrl_c(
    tmp_path: Path, process: "subprocess.Popen[bytes]"
) -> None:
    write(process, encode_line(Opening(str(tmp_path / "empty.sqlite3"))), REQUEST)
    read(process)
    process.send_signal(signal.SIGINT)
    write(process, REQUEST)
    assert read(process)
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait(END_SECONDS) == 0
