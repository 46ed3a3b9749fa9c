import json
from typing import Any

import pytest

from meshnet_common.openai.errors import ApiError
from meshnet_common.openai.json_body import decode_body
from meshnet_common.openai.sampling_options import (
    MAX_CHOICES_SERVED,
    MAX_LOGIT_BIASES,
    SamplingFields,
    SamplingOptions,
    check_vocabulary,
    read_sampling_options,
)


def read(**fields: Any) -> SamplingOptions:
    return read_sampling_options(decode_body(json.dumps(fields).encode(), SamplingFields))


def refusal(body: bytes) -> ApiError:
    with pytest.raises(ApiError) as caught:
        read_sampling_options(decode_body(body, SamplingFields))
    assert caught.value.status == 400
    return caught.value


def test_what_was_not_asked_for_changes_nothing() -> None:
    assert read() == SamplingOptions()


def test_every_field_is_read() -> None:
    assert read(
        n=2,
        temperature=0.5,
        top_p=0.25,
        top_k=40,
        min_p=0.125,
        seed=-7,
        repetition_penalty=1.5,
        frequency_penalty=-2,
        presence_penalty=2,
        logit_bias={"7": -100, "5": 100},
    ) == SamplingOptions(
        n=2,
        temperature=0.5,
        top_p=0.25,
        top_k=40,
        min_p=0.125,
        seed=-7,
        repetition_penalty=1.5,
        frequency_penalty=-2.0,
        presence_penalty=2.0,
        logit_bias=((5, 100.0), (7, -100.0)),
    )


@pytest.mark.parametrize("top_k", [None, 0, -1])
def test_no_limit_may_be_said_in_several_ways(top_k: int | None) -> None:
    assert read(top_k=top_k) == SamplingOptions()


# What each field takes lies between these bounds, which are allowed unless said otherwise.
BOUNDS: dict[str, tuple[float, float]] = {
    "temperature": (0, 2),
    "min_p": (0, 1),
    "repetition_penalty": (0.01, 100),
    "frequency_penalty": (-2, 2),
    "presence_penalty": (-2, 2),
}


@pytest.mark.parametrize(("field", "bounds"), BOUNDS.items(), ids=BOUNDS)
def test_bounds_are_allowed_and_what_is_beyond_them_is_not(
    field: str, bounds: tuple[float, float]
) -> None:
    for bound in bounds:
        assert getattr(read(**{field: bound}), field) == bound
    for beyond in (bounds[0] - 0.001, bounds[1] + 0.001):
        assert refusal(json.dumps({field: beyond}).encode()).body.param == field


FLOATS = (*BOUNDS, "top_p")
INTEGERS = ("n", "top_k", "seed")
NO_NUMBERS = ("NaN", "Infinity", "-Infinity", "1e999", "true", '"1"', "[]", "{}", "[1]", "1" * 400)


@pytest.mark.parametrize("field", [*FLOATS, *INTEGERS])
@pytest.mark.parametrize("text", [*NO_NUMBERS, "1e308", "-1e308", "9223372036854775808"])
def test_what_is_no_number_that_anybody_means_is_refused(field: str, text: str) -> None:
    error = refusal(f'{{"{field}": {text}}}'.encode())
    assert error.body.type == "invalid_request_error"
    assert error.body.param in {field, None}


@pytest.mark.parametrize("field", INTEGERS)
@pytest.mark.parametrize("text", ["1.5", "1.0", "1e0"])
def test_an_integer_is_written_as_one(field: str, text: str) -> None:
    assert refusal(f'{{"{field}": {text}}}'.encode()).body.param == field


@pytest.mark.parametrize("field", FLOATS)
def test_a_number_may_be_written_as_an_integer(field: str) -> None:
    assert getattr(read(**{field: 1}), field) == 1.0


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n", 0), ("n", -1), ("n", 129), ("top_p", 0), ("top_p", -0.5), ("top_p", 1.01),
        ("top_k", -2), ("repetition_penalty", 0), ("repetition_penalty", -1),
        ("seed", -(2**63) - 1),
    ],
)  # fmt: skip
def test_a_value_out_of_bounds_is_refused_by_name(field: str, value: object) -> None:
    error = refusal(json.dumps({field: value}).encode())
    assert (error.body.param, error.body.code) == (field, None)


@pytest.mark.parametrize(
    "bias",
    [
        {"x": 1}, {"": 1}, {"-1": 1}, {"+1": 1}, {" 1": 1}, {"1.0": 1}, {"1e2": 1}, {"01": 1},
        {"1_0": 1}, {"٣": 1}, {"²": 1}, {"9" * 11: 1}, {"9" * 5000: 1},
        {"5": 100.1}, {"5": -100.1}, {"5": "1"}, {"5": True}, {"5": None}, {"5": [1]},
        [], [[5, 1]], "5", 5, {str(k): 1 for k in range(MAX_LOGIT_BIASES + 1)},
    ],
    ids=lambda bias: repr(bias)[:20],
)  # fmt: skip
def test_a_logit_bias_maps_token_ids_to_bounded_numbers(bias: object) -> None:
    error = refusal(json.dumps({"logit_bias": bias}).encode())
    assert (error.body.param or "").startswith("logit_bias")
    assert len(error.body.message) < 600


@pytest.mark.parametrize("text", ["NaN", "1e999", "-Infinity"])
def test_a_logit_bias_is_a_number(text: str) -> None:
    refusal(f'{{"logit_bias": {{"5": {text}}}}}'.encode())


def test_ids_beyond_the_vocabulary_are_refused_by_name() -> None:
    check_vocabulary((), 10)
    check_vocabulary(((0, 1.0), (9, 1.0)), 10)
    with pytest.raises(ApiError) as caught:
        check_vocabulary(((0, 1.0), (10, 1.0)), 10)
    assert (caught.value.status, caught.value.body.param) == (400, "logit_bias")


def test_more_choices_than_are_served_are_refused_as_unsupported() -> None:
    assert read(n=MAX_CHOICES_SERVED).n == MAX_CHOICES_SERVED
    error = refusal(json.dumps({"n": MAX_CHOICES_SERVED + 1}).encode())
    assert (error.body.param, error.body.code) == ("n", "unsupported_value")


def test_several_choices_need_chance() -> None:
    assert refusal(b'{"n": 2, "temperature": 0}').body.param == "n"
    assert read(n=1, temperature=0).temperature == 0
