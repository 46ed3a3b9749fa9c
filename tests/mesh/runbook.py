"""Runs the commands of docs/operations.md as an Operator would, with a client that keeps asking."""

import os
import re
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from demo.processes import command
from tests.mesh.harness import chat_body, post
from tests.repo.tree import ROOT

DOCUMENT = ROOT / "docs" / "operations.md"
BLOCK_SECONDS = 90.0
STOP_SECONDS = 10.0
PAUSE_SECONDS = 0.1

_BLOCK = re.compile(r"^```sh (runbook[a-z- ]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_HEADING = re.compile(r"^## (.+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Block:
    """Some commands of the document, what their fence says of them, and the heading above."""

    heading: str
    mark: str
    text: str


def blocks() -> list[Block]:
    """All marked blocks in the document's order."""
    text = DOCUMENT.read_text()
    headings = [(match.start(), match[1]) for match in _HEADING.finditer(text)]
    return [
        Block(
            next((name for at, name in reversed(headings) if at < match.start()), ""),
            match[1].strip(),
            match[2],
        )
        for match in _BLOCK.finditer(text)
    ]


class Runbook:
    """One machine on which blocks are run; whatever they start ends with it."""

    def __init__(self, folder: Path, replacements: Mapping[str, str]) -> None:
        ports = {port: str(free_port()) for port in ("8080", "8081", "7001", "7002")}
        self.folder = folder
        self._replacements = {**ports, **replacements}
        self._shells: list[subprocess.Popen[str]] = []

    def url(self, port: str) -> str:
        return f"http://127.0.0.1:{self._replacements[port]}"

    def run(self, text: str) -> None:
        """Run commands as the document has them; raises AssertionError when one fails."""
        for written, real in self._replacements.items():
            text = text.replace(written, real)
        log = self.folder / f"block-{len(self._shells)}.log"
        path = f"{Path(command('meshnet-tracker')).parent}:{os.environ['PATH']}"
        with log.open("w") as output:
            shell = subprocess.Popen(
                ("bash", "-euxo", "pipefail", "-c", text),
                cwd=self.folder,
                env={**os.environ, "PATH": path},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                text=True,
                start_new_session=True,
            )
        self._shells.append(shell)
        try:
            status: int | None = shell.wait(BLOCK_SECONDS)
        except subprocess.TimeoutExpired:
            status = None
        assert status == 0, f"status {status}\n{log.read_text()}\n{self.logs()}"

    def logs(self) -> str:
        """The end of every program's log."""
        return "\n".join(
            f"--- {log.name}\n{log.read_text()[-3000:]}"
            for log in sorted(self.folder.glob("*.log"))
            if not log.name.startswith("block-")
        )

    def stop(self) -> None:
        """End all that the blocks have started."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            for shell in self._shells:
                with suppress(ProcessLookupError):
                    os.killpg(shell.pid, number)
            deadline = time.monotonic() + STOP_SECONDS
            while time.monotonic() < deadline and any(map(_is_left, self._shells)):
                time.sleep(PAUSE_SECONDS)


class Client:
    """Asks for a model again and again, at each of several Trackers until one answers."""

    def __init__(self, urls: Sequence[str], model: str) -> None:
        self._urls = urls
        self.model = model
        self.answers: list[str] = []
        self.failures: list[str] = []

    def ask(self) -> None:
        """Ask once; what no Tracker answers is a failure."""
        faults = []
        for url in self._urls:
            body = chat_body(self.model, "w1 w2 w3", max_tokens=4)
            try:
                reply = post(f"{url}/v1/chat/completions", body)
            except OSError as error:
                faults.append(f"{url}: {error}")
                continue
            if reply.status == 200:
                self.answers.append(reply.text)
                return
            faults.append(f"{url}: {reply.status} {reply.body!r}")
        self.failures.append("; ".join(faults))

    @contextmanager
    def asking(self) -> Iterator[None]:
        """Keep asking while the block runs, and at least once before and after it."""
        over = threading.Event()

        def run() -> None:
            while not over.is_set():
                self.ask()

        self.ask()
        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
        self.ask()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _is_left(shell: subprocess.Popen[str]) -> bool:
    try:
        os.killpg(shell.pid, 0)
    except ProcessLookupError:
        return False
    return True
