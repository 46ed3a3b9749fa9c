"""Strict JSON from an untrusted body into a typed struct: a value or an ApiError 400, never more.

msgspec refuses NaN, Infinity, numbers out of range, bytes that are no UTF-8, and nesting beyond
the interpreter's limit. Of an object's duplicate keys the last wins. What remains here is to name
the field at fault the way OpenAI does.
"""

import re
from typing import TypeVar

import msgspec

from meshnet_common.openai.errors import ApiError, invalid_request, invalid_unicode

Body = TypeVar("Body", bound=msgspec.Struct)

# A high surrogate without its low one, or a low one on its own; `(?<!\\)(\\\\)*` skips `\\ud800`.
_LONE_SURROGATE = re.compile(
    rb"(?<!\\)(?:\\\\)*(?:"
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F][0-9a-fA-F]{2})"
    rb"|(?<!\\u[dD][89abAB][0-9a-fA-F]{2})\\u[dD][c-fC-F][0-9a-fA-F]{2})"
)
_PLACE = re.compile(r" - at `(?P<place>[^`]*)`$")
_MISSING = re.compile(r"missing required field `(?P<field>[^`]*)`")


def decode_body(body: bytes, body_type: type[Body]) -> Body:
    """Decode one JSON object; raises ApiError 400 that names the field at fault."""
    try:
        body.decode()  # msgspec skips unknown fields without looking at their bytes.
        return msgspec.json.decode(body, type=body_type)
    except msgspec.ValidationError as error:
        raise _field_error(str(error)) from error
    except UnicodeDecodeError as error:
        raise invalid_request("The body is not valid UTF-8.") from error
    except msgspec.DecodeError as error:
        raise _syntax_error(body, str(error)) from error
    except RecursionError as error:
        raise invalid_request("The body is nested too deeply.") from error


def _field_error(text: str) -> ApiError:
    place = _PLACE.search(text)
    param = place["place"].removeprefix("$").removeprefix(".") if place else ""
    message = text[: place.start()] if place else text
    if missing := _MISSING.search(message):
        param = f"{param}.{missing['field']}" if param else missing["field"]
    where = f"`{param}`" if param else "The body"
    return invalid_request(f"{where} is not valid: {message}.", param or None)


def _syntax_error(body: bytes, text: str) -> ApiError:
    if _LONE_SURROGATE.search(body):
        return invalid_unicode()
    return invalid_request(f"The body is not valid JSON: {text}.")
