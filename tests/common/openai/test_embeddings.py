import base64
import struct

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshnet_common.openai.embeddings import (
    MAX_INPUT_TOKENS,
    MAX_INPUTS,
    EmbeddingRequest,
    embedding_answer,
    parse_embedding_request,
    tokens_in,
)
from meshnet_common.openai.errors import ApiError


def parse(**fields: object) -> EmbeddingRequest:
    return parse_embedding_request(msgspec.json.encode({"model": "m", **fields}))


@pytest.mark.parametrize(
    ("given", "inputs"),
    [
        ("text", ("text",)),
        (["a", "b", "a"], ("a", "b", "a")),
        ([1, 2, 3], ((1, 2, 3),)),
        ([[1, 2], [3]], ((1, 2), (3,))),
        (" ", (" ",)),
    ],
)
def test_texts_and_token_ids_are_read_in_their_order(given: object, inputs: object) -> None:
    assert parse(input=given).inputs == inputs


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "input"),
        ({"input": None}, "input"),
        ({"input": ""}, "input"),
        ({"input": []}, "input"),
        ({"input": ["a", ""]}, "input[1]"),
        ({"input": [[1], []]}, "input[1]"),
        ({"input": [1, "a"]}, "input"),
        ({"input": ["a", [1]]}, "input"),
        ({"input": [1, [2]]}, "input"),
        ({"input": 5}, "input"),
        ({"input": {"text": "a"}}, "input"),
        ({"input": [-1]}, "input[0]"),
        ({"input": [2**31]}, "input[0]"),
        ({"input": [1.5]}, "input[0]"),
        ({"input": [True]}, "input[0]"),
        ({"input": ["a"] * (MAX_INPUTS + 1)}, "input"),
        ({"input": "a", "encoding_format": "float64"}, "encoding_format"),
        ({"input": "a", "dimensions": 0}, "dimensions"),
        ({"input": "a", "dimensions": 1.5}, "dimensions"),
        ({"input": "a", "model": ""}, "model"),
        ({"input": "a", "model": None}, "model"),
    ],
)
def test_a_request_that_breaks_a_rule_names_its_field(
    fields: dict[str, object], param: str
) -> None:
    with pytest.raises(ApiError) as refused:
        parse(**fields)
    assert (refused.value.status, refused.value.body.param) == (400, param)


def test_as_many_inputs_as_allowed_and_unknown_fields_are_taken() -> None:
    assert len(parse(input=["a"] * MAX_INPUTS, new_field={"a": 1}).inputs) == MAX_INPUTS


def test_a_null_is_as_good_as_nothing() -> None:
    assert parse(input="a", encoding_format=None, dimensions=None, user=None) == parse(input="a")


float32 = st.floats(width=32, allow_nan=False, allow_infinity=False)


@given(st.lists(st.lists(float32, min_size=3, max_size=3), min_size=1, max_size=5))
def test_floats_and_base64_are_the_same_float32_in_the_order_of_the_inputs(
    rows: list[list[float]],
) -> None:
    vectors = b"".join(struct.pack("<3f", *row) for row in rows)
    texts = tuple(f"text {place}" for place in range(len(rows)))
    floats, encoded = (
        msgspec.json.decode(
            embedding_answer(
                EmbeddingRequest(model="m", inputs=texts, as_base64=as_base64), vectors, 7
            )
        )
        for as_base64 in (False, True)
    )
    assert [one["index"] for one in floats["data"]] == list(range(len(rows)))
    assert [one["embedding"] for one in floats["data"]] == rows
    decoded = [
        list(struct.unpack("<3f", base64.b64decode(one["embedding"]))) for one in encoded["data"]
    ]
    assert decoded == rows
    assert floats["usage"] == {"prompt_tokens": 7, "total_tokens": 7}
    assert (floats["object"], floats["data"][0]["object"]) == ("list", "embedding")


@pytest.mark.parametrize(
    ("answer", "tokens"),
    [
        (b'{"usage":{"prompt_tokens":0,"total_tokens":0}}', 0),
        (b'{"usage":{"prompt_tokens":7,"total_tokens":7}}', 7),
        (b'{"usage":{"prompt_tokens":1,"total_tokens":99999999}}', MAX_INPUT_TOKENS),
        (b'{"usage":{"prompt_tokens":1,"total_tokens":-5}}', 0),
        (b"{}", 0),
        (b"", 0),
        (None, 0),
    ],
)
def test_what_an_answer_says_to_have_cost_counts_even_if_it_is_nothing(
    answer: bytes | None, tokens: int
) -> None:
    assert tokens_in(answer) == tokens
