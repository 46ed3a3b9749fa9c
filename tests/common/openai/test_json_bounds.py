import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshnet_common.openai.apis import CHAT, COMPLETIONS, RESPONSES
from meshnet_common.openai.embeddings import parse_embedding_request
from meshnet_common.openai.errors import ApiError
from meshnet_common.openai.json_bounds import (
    MAX_KEYS,
    MAX_LISTS_AND_OBJECTS,
    MAX_VALUES,
    check_bounds,
    without_texts,
)

SIGNS = '[]{}:,"\\\n a'
LONG = 4 << 20
QUICK_SECONDS = 2.0
"""What is looked at over and over again takes minutes."""

TOO_MUCH: dict[str, Any] = {
    "lists": [[]] * MAX_LISTS_AND_OBJECTS,
    "objects": [{}] * MAX_LISTS_AND_OBJECTS,
    "keys": {str(number): 0 for number in range(MAX_KEYS + 1)},
    "values": [1] * (MAX_VALUES + 2),
}


def is_refused(body: bytes) -> bool:
    try:
        check_bounds(body)
    except ApiError:
        return True
    return False


@pytest.mark.parametrize("value", TOO_MUCH.values(), ids=TOO_MUCH)
@pytest.mark.parametrize(
    "parse", [CHAT.parse, COMPLETIONS.parse, RESPONSES.parse, parse_embedding_request]
)
def test_too_many_parts_are_refused_wherever_they_stand(parse: Any, value: Any) -> None:
    for name in ("messages", "prompt", "input", "anything"):
        body = json.dumps({"model": "m", name: value}, separators=(",", ":")).encode()
        with pytest.raises(ApiError, match="The body has more than"):
            parse(body)


def test_as_many_as_allowed_and_all_that_a_text_holds_are_read() -> None:
    values: tuple[Any, ...] = (
        [[]] * (MAX_LISTS_AND_OBJECTS - 2),
        [1] * MAX_VALUES,
        {str(number): 0 for number in range(MAX_KEYS - 1)},
        'a[{":,\\"]}' * (LONG // 12),
    )
    for value in values:
        assert not is_refused(json.dumps({"x": value}, separators=(",", ":")).encode())


@given(st.lists(st.text(SIGNS), min_size=1, max_size=5), st.integers(0, 20))
def test_what_stands_in_a_text_counts_for_nothing(texts: list[str], cut: int) -> None:
    whole = json.dumps(texts, separators=(",", ":")).encode()
    alone = b"[" + b"," * (len(texts) - 1) + b"]"
    assert without_texts(whole) == alone
    last = len(json.dumps(texts[-1]))
    assert without_texts(whole[: len(whole) - 1 - min(cut, last - 1)]) == alone[:-1]


@pytest.mark.parametrize(
    "body",
    [
        b'"' + rb"\"" * (LONG // 2),
        b'"' + rb"\"" * (LONG // 2) + b"\\",
        b"\\" * LONG,
        b'"' * LONG,
        rb'"\\' * (LONG // 3),
        b"[" * LONG,
    ],
    ids=["no end", "half an escape", "escapes", "quotes", "cut", "brackets"],
)
def test_no_body_takes_long_to_be_looked_at(body: bytes) -> None:
    began = time.process_time()
    is_refused(body + b"," * (MAX_VALUES + 1))
    assert time.process_time() - began < QUICK_SECONDS
