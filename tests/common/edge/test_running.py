import asyncio
import os
import signal

import pytest

from meshnet_common.edge.running import run_main
from meshnet_common.errors import MeshnetError


class NoDeviceError(MeshnetError):
    """No device was found."""

    exit_status = 4


async def succeed() -> None:
    await asyncio.sleep(0)


async def raise_error(error: Exception) -> None:
    raise error


async def fail_in_a_group(*errors: Exception) -> None:
    async with asyncio.TaskGroup() as group:
        for error in errors:
            group.create_task(raise_error(error))


def test_success_returns() -> None:
    run_main("meshnet-x", succeed())


def test_an_expected_error_is_a_line_and_its_status(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        run_main("meshnet-x", raise_error(NoDeviceError("Install a driver.")))

    assert caught.value.code == 4
    assert capsys.readouterr().err == "meshnet-x: No device was found. Install a driver.\n"


def test_an_expected_error_without_a_status_ends_with_1() -> None:
    with pytest.raises(SystemExit) as caught:
        run_main("meshnet-x", raise_error(MeshnetError()))

    assert caught.value.code == 1


def test_an_expected_error_is_found_in_a_task_group(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        run_main("meshnet-x", fail_in_a_group(NoDeviceError()))

    assert caught.value.code == 4
    assert "No device" in capsys.readouterr().err


def test_a_fault_of_ours_keeps_its_traceback() -> None:
    with pytest.raises(ValueError, match="ours"):
        run_main("meshnet-x", raise_error(ValueError("ours")))


def test_a_fault_of_ours_is_not_hidden_by_an_expected_error() -> None:
    with pytest.raises(BaseExceptionGroup):
        run_main("meshnet-x", fail_in_a_group(NoDeviceError(), ValueError("ours")))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_signal_before_listening_ends_cleanly(number: signal.Signals) -> None:
    async def wait_for_ever() -> None:
        os.kill(os.getpid(), number)
        await asyncio.Event().wait()

    run_main("meshnet-x", wait_for_ever())
