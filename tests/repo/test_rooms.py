"""A room holds at most 300 lines, and every room has its test module."""

from pathlib import Path

from tests.repo.tree import ROOT, python_files, read, source_files

MOST_LINES = 300

# Shells with no decision in them, each run as a real process by the tests named here.
TESTED_ELSEWHERE = {
    "meshnet_gateway/cli.py": "tests/mesh/test_commands.py",
}


def _test_module(source: Path) -> Path:
    """meshnet_tracker/planning/routes.py is tested by tests/tracker/planning/test_routes.py."""
    package, *folders = source.parent.parts
    return Path("tests", package.removeprefix("meshnet_"), *folders, f"test_{source.name}")


def test_no_python_file_is_longer_than_a_room_should_be() -> None:
    sizes = {str(path): read(path).count("\n") for path in python_files()}
    assert {path: lines for path, lines in sizes.items() if lines > MOST_LINES} == {}


def test_every_source_module_has_its_test_module() -> None:
    modules = [path for path in source_files() if not path.name.startswith("__")]
    missing = {
        str(module): str(_test_module(module))
        for module in modules
        if not (ROOT / _test_module(module)).exists() and str(module) not in TESTED_ELSEWHERE
    }
    assert missing == {}


def test_the_list_of_exceptions_names_files_that_exist() -> None:
    named = [*TESTED_ELSEWHERE, *TESTED_ELSEWHERE.values()]
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_every_tests_folder_is_a_package_since_module_names_repeat() -> None:
    folders = {path.parent for path in python_files() if path.parts[0] == "tests"}
    assert [str(folder) for folder in folders if not (ROOT / folder / "__init__.py").exists()] == []
