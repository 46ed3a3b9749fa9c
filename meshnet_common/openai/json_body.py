"""Strict JSON from an untrusted body into a typed struct: a value or an ApiError 400, never more.

msgspec refuses NaN, Infinity, numbers out of range, bytes that are no UTF-8, and nesting beyond
the interpreter's limit. What remains here is to refuse keys that come twice, of which another
reader may take the other one, and to name the field at fault the way OpenAI does.
"""

import json
import re
from typing import Any, TypeVar

import msgspec

from meshnet_common.json_keys import doubled_key
from meshnet_common.openai.errors import ApiError, invalid_request, invalid_unicode
from meshnet_common.openai.json_bounds import check_bounds

Body = TypeVar("Body", bound=msgspec.Struct)

# A high surrogate without its low one, or a low one on its own.
_LONE_SURROGATE = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F][0-9a-fA-F]{2})"
    rb"|(?<!\\u[dD][89abAB][0-9a-fA-F]{2})\\u[dD][c-fC-F][0-9a-fA-F]{2}"
)
_PLACE = re.compile(r" - at `(?P<place>[^`]*)`$")
_LONGEST_PARAM = 64
_MISSING = re.compile(r"missing required field `(?P<field>[^`]*)`")


def decode_body(body: bytes, body_type: type[Body]) -> Body:
    """Decode one JSON object; raises ApiError 400 that names the field at fault."""
    check_bounds(body)
    value = decode_unambiguous(body, body_type)
    _check_keys(body)
    return value


def decode_message(body: bytes, body_type: type[Body]) -> Body:
    """Do the same, sooner where the body is as a program of ours writes such a message."""
    check_bounds(body)
    value = decode_unambiguous(body, body_type)
    # That has each key once; looking at all keys takes ten times as long.
    if msgspec.json.encode(value) != body:
        _check_keys(body)
    return value


def decode_unambiguous(body: bytes, body_type: type[Body]) -> Body:
    """Do the same for a body of which it is known that no key comes twice."""
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
        raise _too_deep() from error


def _check_keys(body: bytes) -> None:
    try:
        _KEYS.decode(body.decode())
    except RecursionError as error:
        raise _too_deep() from error


def _refuse_doubles(pairs: list[tuple[str, Any]]) -> None:
    key = doubled_key(pairs)
    if key is None:
        return
    message = f"The key `{key}` comes more than once in one object."
    raise invalid_request(message, key if len(key) <= _LONGEST_PARAM else None)


# Looks at keys only: what values are is known by then, and numbers may be too long to be read.
_KEYS = json.JSONDecoder(
    object_pairs_hook=_refuse_doubles, parse_int=str, parse_float=str, strict=False
)


def _too_deep() -> ApiError:
    return invalid_request("The body is nested too deeply.")


def _field_error(text: str) -> ApiError:
    place = _PLACE.search(text)
    # Of an object that may have any keys it is not said which one it was.
    param = place["place"].removeprefix("$").removeprefix(".").split("[...]")[0] if place else ""
    message = text[: place.start()] if place else text
    if missing := _MISSING.search(message):
        param = f"{param}.{missing['field']}" if param else missing["field"]
    where = f"`{param}`" if param else "The body"
    return invalid_request(f"{where} is not valid: {message}.", param or None)


def _syntax_error(body: bytes, text: str) -> ApiError:
    # Escaped backslashes aside, of which megabytes would be looked at one by one.
    if _LONE_SURROGATE.search(body.replace(rb"\\", b"--")):
        return invalid_unicode()
    return invalid_request(f"The body is not valid JSON: {text}.")
