"""Where each client lives: a virtual environment or a folder of npm packages of its own.

Made once from pinned lists, in the user's cache; a list that changes makes a new one. Packages come
from whatever index pip and npm are set up for.
"""

import hashlib
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock
from platformdirs import user_cache_path

HERE = Path(__file__).parent
LISTS = HERE / "python"
NODE_FOLDER = HERE / "node"
NODE_LISTS = ("package.json", "package-lock.json")
OLDEST_NODE = 20
INSTALL_SECONDS = 500.0


class EnvironmentFailedError(Exception):
    """A client's packages could not be installed; the message carries what was said."""


class NodeMissingError(Exception):
    """Node.js 20 or newer, with npm, is not installed here."""


def python_environment(name: str) -> Path:
    """Return the Python of the environment that `python/NAME.txt` describes, making it first.

    Raises EnvironmentFailedError.
    """
    pins = LISTS / f"{name}.txt"

    def make(folder: Path) -> None:
        _run(sys.executable, "-m", "venv", str(folder))
        python = str(folder / "bin" / "python")
        _run(python, "-m", "pip", "install", "--quiet", "--no-deps", "-r", str(pins))

    content = pins.read_bytes() + sys.version.encode()
    return _environment(name, content, make) / "bin" / "python"


def node_environment() -> Path:
    """Return a folder with our scripts for Node and the packages of `node/package-lock.json`.

    The scripts are copied there each time: Node looks for packages beside the file that wants them.
    Raises NodeMissingError or EnvironmentFailedError.
    """
    version = _node_version()

    def make(folder: Path) -> None:
        folder.mkdir(parents=True)
        for name in NODE_LISTS:
            shutil.copyfile(NODE_FOLDER / name, folder / name)
        _run("npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts", folder=folder)

    content = b"".join((NODE_FOLDER / name).read_bytes() for name in NODE_LISTS)
    folder = _environment("node", content + version.encode(), make)
    for script in (*NODE_FOLDER.glob("*.mjs"), HERE / "cases.json"):
        shutil.copyfile(script, folder / script.name)
    return folder


def _environment(name: str, content: bytes, make: Callable[[Path], None]) -> Path:
    """A folder that is whole once its mark lies beside it; two processes may ask at once."""
    clients = user_cache_path("meshnet") / "clients"
    clients.mkdir(parents=True, exist_ok=True)
    folder = clients / f"{name}-{hashlib.sha256(content).hexdigest()[:12]}"
    whole = folder.with_name(f"{folder.name}.whole")
    with FileLock(clients / f"{name}.lock"):
        if not whole.exists():
            _forget(clients, name)
            make(folder)
            whole.touch()
    return folder


def _forget(clients: Path, name: str) -> None:
    """Remove what was interrupted, and what older lists made."""
    digest = "[0-9a-f]" * 12
    for mark in clients.glob(f"{name}-{digest}.whole"):
        mark.unlink()
    for folder in clients.glob(f"{name}-{digest}"):
        shutil.rmtree(folder)


def _node_version() -> str:
    if shutil.which("node") is None or shutil.which("npm") is None:
        raise NodeMissingError
    version = _run("node", "--version").strip()
    if int(version.removeprefix("v").split(".")[0]) < OLDEST_NODE:
        raise NodeMissingError
    return version


def _run(*command: str, folder: Path | None = None) -> str:
    ended = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False
    )
    if ended.returncode:
        raise EnvironmentFailedError(f"{' '.join(command)}: {_tail(ended.stdout, ended.stderr)}")
    return ended.stdout


def _tail(*outputs: str, lines: int = 30) -> str:
    return "\n".join("\n".join(outputs).splitlines()[-lines:])
