"""Logs of the three programs: one line for each event on stderr, `event key=value ...` or JSON.

Values with blanks are quoted, so that one event stays one line and nothing a client sends can
forge a second one. What could be a secret is replaced by its key's name.
"""

import json
import logging
import sys
from collections.abc import Mapping, MutableMapping
from datetime import UTC, datetime
from typing import Any, TextIO

import structlog

LEVELS = ("debug", "info", "warning", "error")
FORMATS = ("console", "json")

_LIBRARY_LINE = "%(asctime)s %(levelname)s %(name)s %(message)s"
_SECRET_KEYS = frozenset({"authorization", "token", "ticket", "api_key", "prompt", "messages"})


def configure_logging(
    level: str = "info", stream: TextIO | None = None, form: str = "console"
) -> None:
    """Send structlog's and the libraries' events to stderr; see LEVELS and FORMATS."""
    target = stream or sys.stderr
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            _hide_secrets,
            _render_json if form == "json" else _render_line,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(target),
    )
    handler = logging.StreamHandler(target)
    handler.setFormatter(_JsonFormatter() if form == "json" else logging.Formatter(_LIBRARY_LINE))
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)


def _hide_secrets(
    _logger: object, _method: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    for key in _SECRET_KEYS & event.keys():
        event[key] = "(hidden)"
    return event


def _render_line(_logger: object, _method: str, event: MutableMapping[str, Any]) -> str:
    head = (event.pop("timestamp"), event.pop("level"), _one_line(event.pop("event")))
    traceback = event.pop("exception", None)
    line = " ".join((*head, *_pairs(event)))
    return f"{line}\n{traceback}" if traceback else line


def _render_json(_logger: object, _method: str, event: MutableMapping[str, Any]) -> str:
    first = {key: event.pop(key) for key in ("timestamp", "level", "event")}
    # Whatever is no JSON is told as text; a line break inside of it is escaped.
    return json.dumps({**first, **event}, default=str)


class _JsonFormatter(logging.Formatter):
    """Writes what libraries log in the same form as our own events."""

    def format(self, record: logging.LogRecord) -> str:
        event: dict[str, Any] = {
            "timestamp": f"{datetime.fromtimestamp(record.created, UTC):%Y-%m-%dT%H:%M:%S.%fZ}",
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            "logger": record.name,
        }
        if record.exc_info:
            event["exception"] = self.formatException(record.exc_info)
        return json.dumps(event)


def _pairs(event: Mapping[str, Any]) -> list[str]:
    return [f"{key}={_value(value)}" for key, value in event.items()]


def _value(value: object) -> str:
    text = str(value)
    plain = text.isprintable() and text and not set(text) & set(" \"'=")
    return text if plain else repr(text)


def _one_line(text: object) -> str:
    return " ".join(str(text).split())
