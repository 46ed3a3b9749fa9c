"""Every causal language model of transformers is tried; the committed table says what comes of it.

`python -m bench.architectures --write` renews the table.
"""

import logging
from collections.abc import Iterator
from functools import cache

import pytest

from bench.architectures import (
    DOCUMENT,
    UNSUPPORTED,
    Outcome,
    check,
    document,
    model_types,
    quiet,
    refusals,
    written,
)

LEAST_PASSED = 100
HOPS = {model_type: (2 + place % 2,) for place, model_type in enumerate(model_types())}
"""Two for one, three for the next: the bench tries both with each, which takes twice as long."""

MUST_PASS = (  # noqa: SIM905 - a list of one word a line would be longer
    "llama mistral qwen2 qwen2_moe qwen3 qwen3_moe gemma gemma2 gemma3 gemma3_text phi phi3 gpt2 "
    "gpt_neox opt falcon bloom starcoder2 cohere olmo mixtral gpt_oss deepseek_v2 deepseek_v3 glm4"
).split()

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True, scope="module")
def quiet_models() -> Iterator[None]:
    disabled = logging.root.manager.disable
    quiet()
    yield
    logging.disable(disabled)


@cache
def table() -> dict[str, Outcome]:
    return written()


@pytest.mark.parametrize("model_type", model_types())
def test_a_model_does_what_the_table_says(model_type: str) -> None:
    outcome = check(model_type, HOPS[model_type])
    assert outcome.status == table()[model_type].status, outcome.remark
    if outcome.status == "passed":
        assert outcome.remark == table()[model_type].remark


def test_the_table_and_the_trackers_list_are_of_one_run() -> None:
    assert DOCUMENT.read_text() == document(table().values())
    assert UNSUPPORTED.read_text() == refusals(table().values())


def test_at_least_a_hundred_pass_and_none_is_served_wrongly() -> None:
    statuses = [outcome.status for outcome in table().values()]
    assert statuses.count("passed") >= LEAST_PASSED
    assert statuses.count("failed") == 0
    assert list(table()) == model_types()


@pytest.mark.parametrize("model_type", MUST_PASS)
def test_the_best_known_families_pass(model_type: str) -> None:
    assert table()[model_type].status == "passed"
