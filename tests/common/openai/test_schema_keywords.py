from typing import Any

import pytest

from meshnet_common.openai.schema_keywords import (
    FAULTS,
    FORMATS,
    LARGEST_NUMBER,
    MOST_DIVISOR,
    MOST_PATTERN_CHARACTERS,
    TYPES,
    pattern_fault,
    text_fault,
)


@pytest.mark.parametrize(
    ("keyword", "value"),
    [
        *(("type", name) for name in TYPES),
        *(("format", name) for name in FORMATS),
        ("type", ["string", "null"]),
        ("minimum", -0.5),
        ("exclusiveMaximum", LARGEST_NUMBER),
        ("multipleOf", 1),
        ("multipleOf", 5.0),
        ("maxLength", 0),
        ("required", []),
        ("pattern", "^[A-Z]{2}-(?:a|b)(?<year>[0-9]+)$"),
    ],
)
def test_what_is_kept_exactly_is_let_through(keyword: str, value: Any) -> None:
    assert FAULTS[keyword](value) is None


@pytest.mark.parametrize(
    ("keyword", "value"),
    [
        ("type", "integr"),
        ("type", []),
        ("type", None),
        ("type", {"a": 1}),
        ("format", "int32"),
        ("format", ["date"]),
        ("minimum", "1"),
        ("minimum", True),
        ("maximum", LARGEST_NUMBER + 1),
        ("exclusiveMinimum", False),
        ("multipleOf", 0),
        ("multipleOf", -2),
        ("multipleOf", 0.1),
        ("multipleOf", True),
        ("multipleOf", MOST_DIVISOR + 1),
        ("minItems", -1),
        ("minItems", 1.5),
        ("minItems", True),
        ("required", "name"),
        ("required", ["name", 1]),
        ("required", ["na\x00me"]),
        ("pattern", 1),
        ("pattern", "a" * (MOST_PATTERN_CHARACTERS + 1)),
    ],
)
def test_what_cannot_be_kept_has_a_fault(keyword: str, value: Any) -> None:
    assert FAULTS[keyword](value)


@pytest.mark.parametrize(
    "pattern",
    ["(?i)a", "(?i:a)", "(?x) a", "(?-i)a", "[[:alpha:]]", "[a&&b]", "[a-z--b]", "[a~~b]"],
)
def test_a_pattern_that_means_something_else_elsewhere_is_refused(pattern: str) -> None:
    assert pattern_fault(pattern)


@pytest.mark.parametrize("text", ["\x00", "a\x1fb", "\x7f", "\x0b"])
def test_a_text_with_a_control_character_that_has_no_letter_is_refused(text: str) -> None:
    assert text_fault(text)


def test_all_other_text_is_let_through() -> None:
    assert text_fault('é 😀 "\\/\b\f\n\r\t\u2028') is None
