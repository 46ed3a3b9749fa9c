import json

import msgspec
import pytest

from meshnet_common.openai.errors import ApiError
from meshnet_common.openai.json_body import decode_body, decode_message, decode_unambiguous


class Order(msgspec.Struct):
    """A body with a field inside a field."""

    size: int
    notes: list[dict[str, int]] = []


def refusal(body: bytes) -> ApiError:
    refused = []
    for decode in (decode_body, decode_message):
        with pytest.raises(ApiError) as caught:
            decode(body, Order)
        refused.append(caught.value)
    assert {(error.status, error.body) for error in refused} == {(400, refused[0].body)}
    return refused[0]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"nothing",
        b"{",
        b"[]",
        b"null",
        b'"size"',
        b'{"size": NaN}',
        b'{"size": Infinity}',
        b'{"size": 1e999}',
        b'{"size": 1, "other": NaN}',
        b'{"size": 1} trailing',
        b'{"size": 1, "other": "\xff"}',
        b'{"size": 1, "other": "\xed\xa0\x80"}',
        b"\xef\xbb\xbf{}",
        b"[" * 200_000,
        b'{"size": 1, "other": ' + b"[" * 200_000 + b"]" * 200_000 + b"}",
        b'{"size":' * 100_000,
    ],
    ids=range(17),
)
def test_what_is_not_one_sound_json_object_is_refused(body: bytes) -> None:
    assert refusal(body).body.param is None or refusal(body).body.param == "size"


@pytest.mark.parametrize(
    "escape",
    [r"\ud800", r"\uDBFF x", r"\udc00", r"x\ud83d\ud83d", r"\\\ud800", r"\ud83d\\\ude00"],
)
def test_a_lone_surrogate_is_named_in_any_string(escape: str) -> None:
    known = f'{{"size": 1, "notes": [{{"{escape}": 1}}]}}'.encode()
    unknown = f'{{"size": 1, "other": "{escape}"}}'.encode()

    assert refusal(known).body.code == "invalid_unicode"
    assert refusal(unknown).body.code == "invalid_unicode"


@pytest.mark.parametrize("text", [r"\ud83d\ude00", r"\\ud800", r"\u0041"])
def test_whole_characters_pass(text: str) -> None:
    assert decode_body(f'{{"size": 1, "other": "{text}"}}'.encode(), Order).size == 1


def test_a_missing_field_is_named() -> None:
    assert refusal(b"{}").body.param == "size"


def test_the_place_of_a_wrong_value_is_named() -> None:
    assert refusal(b'{"size": 1, "notes": [{}, {"a": "b"}]}').body.param == "notes[1]"
    assert refusal(b'{"size": "large"}').body.param == "size"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (rb'{"size": 1, "size": 2}', "size"),
        (rb'{"size": 1, "size": 1}', "size"),
        (rb'{"size": 1, "\u0073ize": 2}', "size"),
        (rb'{"size": 1, "notes": [{"a": 1, "a": 1}]}', "a"),
        (rb'{"size": 1, "other": [[{"b": {"c": 1, "d": 1, "c": []}}]]}', "c"),
        (rb'{"size": 1, "other": {"": 1, "": 2}}', ""),
        (b'{"size": 1, "' + b"x" * 65 + b'": 1, "' + b"x" * 65 + b'": 1}', None),
    ],
)
def test_a_key_that_comes_twice_in_one_object_is_refused(body: bytes, param: str | None) -> None:
    assert refusal(body).body.param == param


def test_the_same_key_in_two_objects_is_no_double() -> None:
    body = b'{"size": 1, "notes": [{"size": 1}, {"size": 2}], "other": {"size": {"size": 3}}}'

    assert decode_body(body, Order).notes == [{"size": 1}, {"size": 2}]


def test_a_message_is_read_alike_however_it_is_written() -> None:
    order = Order(size=10**30, notes=[{"ü": 1}])

    for body in (
        msgspec.json.encode(order),
        msgspec.json.format(msgspec.json.encode(order)),
        json.dumps({"notes": order.notes, "more": None, "size": order.size}).encode(),
    ):
        assert decode_message(body, Order) == order


def test_numbers_of_any_length_pass_where_nobody_reads_them() -> None:
    long = b"9" * 100_000

    assert decode_body(b'{"size": 1, "a": ' + long + b', "b": 0.' + long + b"}", Order).size == 1


def test_what_is_known_to_have_no_doubles_is_not_searched_for_them() -> None:
    assert decode_unambiguous(b'{"size": 1, "size": 2}', Order).size == 2


def test_the_answer_to_a_huge_body_is_small() -> None:
    body = b'{"' + b"x" * 3_000_000 + b'": 1, "size": "' + b"y" * 1_000_000 + b'"}'

    assert len(refusal(body).to_json()) < 1000
