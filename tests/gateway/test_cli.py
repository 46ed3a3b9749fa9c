import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from meshnet_gateway.cli import main


def test_help_tells_every_option_and_its_default() -> None:
    result = CliRunner().invoke(main, ["serve", "--help"])

    assert result.exit_code == 0
    for word in (
        "--config",
        "--mesh",
        "8080",
        "--port",
        "8090",
        "--host",
        "--ready-file",
        "--log-level",
    ):
        assert word in result.output


def test_help_loads_no_server() -> None:
    program = (
        "import sys, meshnet_gateway.cli\n"
        "sys.exit(bool({'aiohttp', 'torch', 'structlog'} & set(sys.modules)))"
    )

    assert subprocess.run((sys.executable, "-c", program), check=False).returncode == 0


@pytest.mark.parametrize(
    "arguments",
    [["--mesh", "localhost:8080"], ["--port", "70000"], ["--log-level", "loud"], ["--nonsense"]],
)
def test_a_usage_error_ends_with_2(arguments: list[str]) -> None:
    assert CliRunner().invoke(main, ["serve", *arguments]).exit_code == 2


def test_check_config_prints_every_value_and_where_it_is_from(tmp_path: Path) -> None:
    file = tmp_path / "gateway.toml"
    file.write_text("max_waiting = 7")
    environment = {"MESH_PROXY_CONNECT_RETRIES": "3"}

    arguments = ["check-config", "--config", str(file), "--mesh", "http://a:1"]
    result = CliRunner().invoke(main, arguments, env=environment)

    assert result.exit_code == 0
    lines = result.output.splitlines()
    assert f"max_waiting = 7  # {file}" in lines
    assert "connect_retries = 3  # MESH_PROXY_CONNECT_RETRIES" in lines
    assert 'meshes = ["http://a:1"]  # --mesh' in lines


def test_check_config_doubts_on_stderr_and_ends_well(tmp_path: Path) -> None:
    file = tmp_path / "gateway.toml"
    file.write_text("gpu_concurrency_budgets = { typo = 3 }")

    result = CliRunner().invoke(main, ["check-config", "--config", str(file)])

    assert result.exit_code == 0
    assert "typo: no Endpoint here is in this group" in result.stderr
    assert "no Endpoint here" not in result.stdout


@pytest.mark.parametrize("option", [("--level-seconds", "nan"), ("--plot", "no/such/folder.svg")])
def test_a_calibration_that_could_not_end_well_does_not_begin(option: tuple[str, str]) -> None:
    result = CliRunner().invoke(main, ["calibrate", "--model", "m", *option])

    assert result.exit_code == 2
    assert option[1] in result.output


@pytest.mark.parametrize("command", [("check-config",), ("serve", "--port", "0")])
def test_settings_with_faults_end_with_3_and_every_fault(
    command: tuple[str, ...], tmp_path: Path
) -> None:
    file = tmp_path / "gateway.toml"
    file.write_text('max_waiting = -1\n[[chat_models]]\nid = ""')
    program = (sys.executable, "-m", "meshnet_gateway.cli", *command, "--config", str(file))

    result = subprocess.run(program, check=False, capture_output=True, text=True, timeout=30)

    assert result.returncode == 3
    assert result.stderr.splitlines() == [
        "meshnet-gateway: The settings cannot be used.",
        "  max_waiting: Expected `int` >= 0",
        "  chat_models[0].id: Expected `str` of length >= 1",
    ]


def test_a_hang_up_while_the_settings_are_read_ends_nothing(tmp_path: Path) -> None:
    file = tmp_path / "gateway.toml"
    os.mkfifo(file)
    command = (sys.executable, "-m", "meshnet_gateway.cli", "serve", "--config", str(file))
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        # Opened once the other side reads, which then waits for what is written.
        with file.open("w") as settings:
            process.send_signal(signal.SIGHUP)
            settings.write("max_waiting = -1")
        _, errors = process.communicate(timeout=30)

    assert process.returncode == 3, errors


def test_a_port_in_use_ends_with_3_and_no_traceback() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        command = (sys.executable, "-m", "meshnet_gateway.cli", "serve", "--port", port)
        result = subprocess.run(command, check=False, capture_output=True, text=True, timeout=30)

    assert result.returncode == 3
    assert result.stderr.startswith("meshnet-gateway: The port is already in use.")
    assert "--port" in result.stderr
    assert "Traceback" not in result.stderr
