import io
import logging
from collections.abc import Iterator

import pytest
import structlog

from meshnet_common.edge.logs import configure_logging


@pytest.fixture(autouse=True)
def _restored_logging() -> Iterator[None]:
    handlers, level = logging.root.handlers[:], logging.root.level
    logging.root.handlers = []
    yield
    logging.root.handlers, logging.root.level = handlers, level
    structlog.reset_defaults()


def logged(event: str, level: str = "info", **facts: object) -> str:
    stream = io.StringIO()
    configure_logging(level, stream)
    structlog.get_logger().info(event, **facts)
    return stream.getvalue()


def test_an_event_is_one_line_of_keys_and_values() -> None:
    line = logged("tracker listening", url="http://127.0.0.1:43211", workers=3)

    assert line.endswith(" info tracker listening url=http://127.0.0.1:43211 workers=3\n")


def test_a_value_cannot_forge_a_second_line() -> None:
    line = logged("request", path="/x\n2030-01-01 error all is lost", name="")

    assert line.count("\n") == 1
    assert "name=''" in line


def test_secrets_are_hidden() -> None:
    line = logged("call", token="abc123", authorization="Bearer abc123", ticket="abc123")

    assert "abc123" not in line


def test_the_level_decides_what_is_written() -> None:
    assert logged("chatter", "warning") == ""


def test_a_traceback_follows_its_event() -> None:
    stream = io.StringIO()
    configure_logging("info", stream)
    try:
        int("a fact")
    except ValueError:
        structlog.get_logger().exception("it failed")

    first, *rest = stream.getvalue().splitlines()
    assert first.endswith("error it failed")
    assert rest[-1] == "ValueError: invalid literal for int() with base 10: 'a fact'"


def test_warnings_of_libraries_reach_the_same_stream() -> None:
    stream = io.StringIO()
    configure_logging("info", stream)
    logging.getLogger("some.library").warning("careful")

    assert "WARNING some.library careful" in stream.getvalue()
