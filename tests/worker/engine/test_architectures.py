"""Causal language models of transformers are tried; the committed table says what comes of it.

Two thirds of the rows are tried here, each over two Hops or three: all of the best known, those
with another rope, and two of every three of the rest. `python -m bench.architectures` tries the
whole table over both, which takes three times as long; with `--write` it renews it.
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
    names,
    needed,
    quiet,
    refusals,
    written,
)
from bench.tiny_models import ROPES

LEAST_PASSED = 100

BEST_KNOWN = (  # noqa: SIM905 - a list of one word a line would be longer
    "llama mistral qwen2 qwen2_moe qwen3 qwen3_moe gemma gemma2 gemma3 gemma3_text phi phi3 gpt2 "
    "gpt_neox opt falcon bloom mpt starcoder2 cohere olmo mixtral gpt_oss deepseek_v2 deepseek_v3 "
    "glm4"
).split()
MUST_PASS = (*BEST_KNOWN, "llama (linear)", "llama (llama3)", "llama (yarn)", "phi3 (longrope)")
OTHERS = [name for name in names() if name not in {*BEST_KNOWN, *ROPES}]
TRIED = sorted({*names()} - {*OTHERS[2::3]})

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


@pytest.mark.parametrize(("place", "name"), [*enumerate(TRIED)])
def test_a_model_does_what_the_table_says(place: int, name: str) -> None:
    outcome = check(name, (2 + place % 2,))
    assert outcome.status == table()[name].status, outcome.remark
    if outcome.status == "passed":
        assert outcome.remark == table()[name].remark


def test_the_table_and_the_trackers_list_are_of_one_run() -> None:
    assert DOCUMENT.read_text() == document(table().values())
    assert UNSUPPORTED.read_text() == refusals(table().values())


def test_at_least_a_hundred_pass_and_none_is_served_wrongly() -> None:
    statuses = [outcome.status for outcome in table().values()]
    assert [table()[name].status for name in TRIED].count("passed") >= LEAST_PASSED
    assert statuses.count("failed") == 0
    assert list(table()) == names()


@pytest.mark.parametrize("model_type", MUST_PASS)
def test_the_best_known_families_pass(model_type: str) -> None:
    assert table()[model_type].status == "passed"


def test_what_is_missing_is_named_by_its_package() -> None:
    said = "It requires the PIL library. You can install it with pip: `pip install pillow`."
    assert needed(ImportError(said)) == "the package pillow"
    both = f"{said} It requires the timm library: `pip install timm`."
    assert needed(ImportError(both)) == "the packages pillow and timm"
    assert needed(ModuleNotFoundError("No module named 'timm'", name="timm")) == "the package timm"
