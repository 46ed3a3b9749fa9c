import json
from typing import Any

import pytest

from meshnet_common.openai.errors import ApiError
from meshnet_common.openai.generation_options import (
    GenerationFields,
    GenerationOptions,
    read_generation_options,
)
from meshnet_common.openai.json_body import decode_body


def read(newer_limit: int | None = None, **fields: Any) -> GenerationOptions:
    decoded = decode_body(json.dumps(fields).encode(), GenerationFields)
    return read_generation_options(decoded, newer_limit)


def refusal(**fields: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        read(**fields)
    assert caught.value.status == 400
    return caught.value


def test_what_was_not_asked_for_changes_nothing() -> None:
    assert read() == GenerationOptions()


def test_how_to_draw_is_read_along() -> None:
    assert read(top_k=3, max_tokens=5) == GenerationOptions(top_k=3, max_tokens=5)


@pytest.mark.parametrize(
    ("older", "newer", "limit"), [(5, None, 5), (None, 6, 6), (5, 6, 6), (2**40, None, 2**40)]
)
def test_the_newer_token_limit_wins(older: int | None, newer: int | None, limit: int) -> None:
    assert read(newer, max_tokens=older).max_tokens == limit


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_tokens", 0), ("max_tokens", -1), ("max_tokens", 2**63), ("max_tokens", 16.0),
        ("max_tokens", 1e308), ("max_tokens", "16"), ("max_tokens", True),
        ("min_tokens", -1), ("min_tokens", 2**63), ("min_tokens", 1.0), ("min_tokens", False),
        ("stop", ""), ("stop", ["a", ""]), ("stop", list("abcde")), ("stop", 3), ("stop", [3]),
        ("stop", "x" * 4097), ("stop", {}), ("stop", True),
        ("ignore_eos", 1), ("ignore_eos", "true"),
    ],
)  # fmt: skip
def test_a_value_out_of_bounds_is_refused_by_name(field: str, value: object) -> None:
    assert (refusal(**{field: value}).body.param or "").startswith(field)


def test_more_tokens_cannot_be_demanded_than_are_allowed() -> None:
    assert refusal(min_tokens=9, max_tokens=8).body.param == "min_tokens"
    assert read(min_tokens=8, max_tokens=8).min_tokens == 8


def test_one_stop_string_is_a_list_of_one() -> None:
    assert read(stop="END").stop == ("END",)
    assert read(stop=["a", "b"]).stop == ("a", "b")
