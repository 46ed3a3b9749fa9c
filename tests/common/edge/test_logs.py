import io
import json
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


def json_lines(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_as_json_an_event_is_one_object_on_one_line() -> None:
    stream = io.StringIO()
    configure_logging("info", stream, "json")
    structlog.get_logger().info("worker\nlost", token="abc123", workers=3, layers=range(2))
    (event,) = json_lines(stream)
    assert list(event)[:3] == ["timestamp", "level", "event"]
    assert (event["event"], event["level"], event["workers"]) == ("worker\nlost", "info", 3)
    assert (event["token"], event["layers"]) == ("(hidden)", "range(0, 2)")


def test_as_json_a_traceback_is_part_of_its_event() -> None:
    stream = io.StringIO()
    configure_logging("info", stream, "json")
    try:
        int("a fact")
    except ValueError:
        structlog.get_logger().exception("it failed")
    (event,) = json_lines(stream)
    assert "ValueError: invalid literal" in str(event["exception"])


def test_as_json_libraries_write_the_same_form() -> None:
    stream = io.StringIO()
    configure_logging("info", stream, "json")
    try:
        int("a fact")
    except ValueError:
        logging.getLogger("library").warning("%s is odd", "it", exc_info=True)
    (event,) = json_lines(stream)
    assert (event["level"], event["event"], event["logger"]) == ("warning", "it is odd", "library")
    assert "ValueError" in str(event["exception"])
