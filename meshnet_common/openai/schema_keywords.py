"""Which keywords of JSON Schema 2020-12 constrain an answer here, and what each may say; pure.

A check answers what is wrong with a keyword's value, None if nothing is. Values are bounded to what
the token masks keep exactly, and to what is cheap to compile.
"""

import re
from collections.abc import Callable, Mapping

MOST_PATTERN_CHARACTERS = 2000
MOST_DIVISOR = 1000
LARGEST_NUMBER = 2**53
"""Up to here every integer is a floating-point number too, as whoever compiles it takes it."""

TYPES = ("array", "boolean", "integer", "null", "number", "object", "string")
FORMATS = (
    "date",
    "date-time",
    "duration",
    "email",
    "hostname",
    "ipv4",
    "ipv6",
    "time",
    "uri",
    "uuid",
)
ANNOTATIONS = frozenset(
    {
        "$comment",
        "$schema",
        "default",
        "deprecated",
        "description",
        "discriminator",
        "example",
        "examples",
        "externalDocs",
        "readOnly",
        "title",
        "writeOnly",
        "xml",
    }
)
"""Keywords that constrain nothing."""

# JSON has a letter to escape the others with; a number is never written, so that each string has
# one form only.
_CONTROL_CHARACTER = re.compile(r"[\x00-\x07\x0b\x0e-\x1f\x7f]")
# Only some dialects have flags and classes within classes, or another meaning for them.
_ODD_PATTERN = re.compile(r"\(\?[a-zA-Z]*-?[a-zA-Z]+[:)]|\[[^\]]*(?:\[|&&|--|~~)")


def text_fault(value: str) -> str | None:
    """What is wrong with a text that an answer may have to hold."""
    is_odd = _CONTROL_CHARACTER.search(value) is not None
    return "holds a control character that JSON has no letter for" if is_odd else None


def number_fault(value: object) -> str | None:
    """What is wrong with a number that bounds an answer, or that it may have to hold."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "must be a number"
    return None if abs(value) <= LARGEST_NUMBER else f"holds a number beyond {LARGEST_NUMBER}"


def pattern_fault(value: object) -> str | None:
    """What is wrong with a regular expression at first sight; whoever compiles it sees the rest."""
    if not isinstance(value, str):
        return "must be a regular expression"
    if len(value) > MOST_PATTERN_CHARACTERS:
        return f"is longer than {MOST_PATTERN_CHARACTERS} characters"
    if _ODD_PATTERN.search(value):
        return "has flags, or a class within a class: not every regular expression has those"
    return None


def _count_fault(value: object) -> str | None:
    is_count = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    return None if is_count else "must be a whole number, not below 0"


def _divisor_fault(value: object) -> str | None:
    # Of fractions, floating-point arithmetic and decimal digits do not say the same.
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    is_fit = is_number and value in range(1, MOST_DIVISOR + 1)
    return None if is_fit else f"must be a whole number from 1 to {MOST_DIVISOR}"


def _format_fault(value: object) -> str | None:
    return None if value in FORMATS else f"must be one of: {', '.join(FORMATS)}"


def _type_fault(value: object) -> str | None:
    names = value if isinstance(value, list) else [value]
    is_known = bool(names) and all(name in TYPES for name in names)
    return None if is_known else f"must be of: {', '.join(TYPES)}"


def _names_fault(value: object) -> str | None:
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        return "must be a list of names"
    return next(filter(None, map(text_fault, value)), None)


FAULTS: Mapping[str, Callable[[object], str | None]] = {
    "exclusiveMaximum": number_fault,
    "exclusiveMinimum": number_fault,
    "format": _format_fault,
    "maxItems": _count_fault,
    "maxLength": _count_fault,
    "maxProperties": _count_fault,
    "maximum": number_fault,
    "minItems": _count_fault,
    "minLength": _count_fault,
    "minProperties": _count_fault,
    "minimum": number_fault,
    "multipleOf": _divisor_fault,
    "pattern": pattern_fault,
    "required": _names_fault,
    "type": _type_fault,
}
"""The checks of keywords that hold no schemas."""
