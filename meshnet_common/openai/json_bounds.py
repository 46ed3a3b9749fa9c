"""How much a body of JSON may consist of; pure.

Long texts are read in no time, but each of very many small values is made with everybody else at a
standstill, since one call makes them all. No client means so many.
"""

from collections.abc import Mapping

from meshnet_common.openai.errors import invalid_request

MAX_LISTS_AND_OBJECTS = 50_000
MAX_KEYS = 100_000
MAX_VALUES = 500_000

_BOUNDS: Mapping[str, tuple[bytes, int]] = {
    "lists and objects": (b"[{", MAX_LISTS_AND_OBJECTS),
    "keys": (b":", MAX_KEYS),
    "values": (b",", MAX_VALUES),
}


def check_bounds(body: bytes) -> None:
    """Raise ApiError 400 for a body of too many parts; texts may hold as much as they like."""
    if _excess(body) and (what := _excess(without_texts(body))):
        raise invalid_request(f"The body has more than {_BOUNDS[what][1]} {what}.")


def without_texts(body: bytes) -> bytes:
    """Return what stands outside of all strings, of which the last one may have no end."""
    plain = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    return b"".join(plain.split(b'"')[::2])


def _excess(text: bytes) -> str:
    """What there is too much of; nothing if all is well."""
    for what, (signs, most) in _BOUNDS.items():
        if sum(text.count(sign) for sign in signs) > most:
            return what
    return ""
