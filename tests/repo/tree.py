"""The files of this repository, as the repository's own tests see them."""

import subprocess
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE_FOLDERS = ("meshnet_common", "meshnet_gateway", "meshnet_tracker", "meshnet_worker", "demo")


@cache
def repository_files() -> tuple[Path, ...]:
    """Every file that is tracked or would be with the next `git add`, relative to the root."""
    listing = subprocess.run(
        ("git", "-c", "safe.directory=*", "ls-files", "-z", "-co", "--exclude-standard"),
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    paths = (Path(name) for name in listing.split("\0") if name)
    return tuple(sorted(path for path in paths if (ROOT / path).is_file()))


def python_files() -> tuple[Path, ...]:
    return tuple(path for path in repository_files() if path.suffix == ".py")


def source_files() -> tuple[Path, ...]:
    """The Python files of the product: the four packages and the demo."""
    return tuple(path for path in python_files() if path.parts[0] in SOURCE_FOLDERS)


def read(path: Path) -> str:
    return (ROOT / path).read_text(encoding="utf-8")
