"""Logs of the three programs: one line for each event on stderr, `event key=value ...`.

Values with blanks are quoted, so that one event stays one line and nothing a client sends can
forge a second one. What could be a secret is replaced by its key's name.
"""

import logging
import sys
from collections.abc import Mapping, MutableMapping
from typing import Any, TextIO

import structlog

LEVELS = ("debug", "info", "warning", "error")

_SECRET_KEYS = frozenset({"authorization", "token", "ticket", "api_key", "prompt", "messages"})


def configure_logging(level: str = "info", stream: TextIO | None = None) -> None:
    """Send structlog's and the libraries' events to stderr; `level` is one of LEVELS."""
    target = stream or sys.stderr
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            _hide_secrets,
            _render_line,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(target),
    )
    logging.basicConfig(
        stream=target,
        level=logging.WARNING,
        format="%(asctime)s %(levelname)s %(name)s %(message)s",
        force=True,
    )


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


def _pairs(event: Mapping[str, Any]) -> list[str]:
    return [f"{key}={_value(value)}" for key, value in event.items()]


def _value(value: object) -> str:
    text = str(value)
    plain = text.isprintable() and text and not set(text) & set(" \"'=")
    return text if plain else repr(text)


def _one_line(text: object) -> str:
    return " ".join(str(text).split())
