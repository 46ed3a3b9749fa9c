import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshnet_worker.text.json_scanner import MAX_DEPTH, NotJsonError, ObjectScanner

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8")),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
OBJECTS = st.dictionaries(st.text(st.characters(codec="utf-8")), VALUES, max_size=3)
LAYOUTS = st.sampled_from([{}, {"indent": 1}, {"separators": (" , ", " : ")}])


def scanned(text: str) -> tuple[bool, dict[str, str]]:
    """Whether the text is a whole object, and the text of each value."""
    scanner, values = ObjectScanner(), dict[str, str]()
    for character in text:
        scanner.feed(character)
        if scanner.is_in_value:
            values[scanner.key] = values.get(scanner.key, "") + character
    return scanner.is_complete, values


def is_object(text: str) -> bool:
    try:
        return scanned(text)[0]
    except NotJsonError:
        return False


@given(OBJECTS, LAYOUTS, st.booleans())
def test_every_object_is_read_and_every_value_is_under_its_key(
    value: dict[str, Any], layout: dict[str, Any], ascii_only: bool
) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only, **layout)

    is_complete, values = scanned(text)
    assert is_complete
    assert {key: json.loads(written) for key, written in values.items()} == value


@given(OBJECTS, st.data())
def test_a_changed_object_is_read_only_if_it_still_is_one(
    value: dict[str, Any], data: st.DataObject
) -> None:
    text = json.dumps(value)
    place = data.draw(st.integers(0, len(text) - 1))
    other = data.draw(st.sampled_from('{}[],:"\\ 0-.eux1ntf'))
    text = text[:place] + other + text[place + data.draw(st.integers(0, 1)) :]

    assert is_object(text) == _is_strict_object(text)


def _is_strict_object(text: str) -> bool:
    if not text.startswith("{") or text != text.rstrip():
        return False
    try:
        # What is no character, half a surrogate pair, cannot be encoded.
        json.dumps(json.loads(text, parse_constant=_refuse), ensure_ascii=False).encode()
    except ValueError:
        return False
    return True


def _refuse(constant: str) -> None:
    raise ValueError(constant)


@pytest.mark.parametrize(
    "text",
    [
        "[", " ", "{]", "{,", '{"a"}', '{"a":}', '{"a":1,}', '{"a":01}', '{"a":1.}', '{"a":+',
        '{"a":nul}', '{"a":nulll', '{"a":N', "{'", "{a", '{"a":[1,]', '{"a":[}',
        '{"\x00', '{"\\x', '{"\\u12g', '{"\\ud800"', '{"\\ud800\\n', '{"\\ud800\\u0041',
        '{"\\udc00', "{}}", "{} ",
    ],
)  # fmt: skip
def test_what_is_no_object_is_refused_at_the_character_that_shows_it(text: str) -> None:
    scanned(text[:-1])
    with pytest.raises(NotJsonError):
        scanned(text)


@pytest.mark.parametrize("text", ["{", '{"a', '{"a":[1', '{"a":"\\', '{"a":{}'])
def test_an_object_is_complete_only_with_its_last_bracket(text: str) -> None:
    assert not scanned(text)[0]


def test_line_ends_in_strings_are_forgiven() -> None:
    assert scanned('{"a\n": "x\r\n\ty"}') == (True, {"a\n": '"x\r\n\ty"'})


def test_depth_is_limited() -> None:
    assert is_object('{"a":' + "[" * (MAX_DEPTH - 1) + "]" * (MAX_DEPTH - 1) + "}")
    assert not is_object('{"a":' + "[" * MAX_DEPTH + "]" * MAX_DEPTH + "}")


def test_keys_are_counted_even_if_they_are_the_same() -> None:
    scanner = ObjectScanner()
    for character in '{"a": {"b": 1}, "a": 2}':
        scanner.feed(character)

    assert scanner.keys == 2
