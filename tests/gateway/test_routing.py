from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshnet_common.openai.errors import (
    ApiError,
    model_not_found,
    model_unavailable,
    upstream_failed,
)
from meshnet_gateway.routing import COOL_SECONDS, HeadLoad, join_findings, order_heads

HEADS = ("a", "b", "c")
UNKNOWN = model_not_found("m")
UNCOVERED = model_unavailable("Layers [0, 3) are missing.", 5)
SILENT = upstream_failed("No Mesh answers.")


def served_in_turn(requests: int, heads: tuple[str, ...] = HEADS) -> list[str]:
    loads: dict[str, HeadLoad] = {}
    chosen = []
    for turn in range(1, requests + 1):
        head = order_heads(heads, loads, now=0.0)[0]
        loads[head] = loads.get(head, HeadLoad()).begun(turn).ended()
        chosen.append(head)
    return chosen


def test_the_head_with_the_fewest_connections_comes_first() -> None:
    loads = {"a": HeadLoad(in_flight=2), "b": HeadLoad(in_flight=1), "c": HeadLoad(in_flight=3)}

    assert order_heads(HEADS, loads, now=0.0) == ("b", "a", "c")


def test_equals_take_turns() -> None:
    assert served_in_turn(7) == ["a", "b", "c", "a", "b", "c", "a"]


def test_ten_requests_over_two_heads_are_five_each() -> None:
    assert Counter(served_in_turn(10, ("a", "b"))) == {"a": 5, "b": 5}


def test_a_head_that_failed_comes_last_until_it_has_cooled() -> None:
    loads = {"a": HeadLoad().unreachable(now=100.0), "b": HeadLoad(in_flight=9)}

    assert order_heads(("a", "b"), loads, now=100.0 + COOL_SECONDS - 0.1) == ("b", "a")
    assert order_heads(("a", "b"), loads, now=100.0 + COOL_SECONDS) == ("a", "b")


@given(st.lists(st.sampled_from(["begin", "end"]), max_size=60))
def test_heads_never_differ_by_more_than_one_connection(events: list[str]) -> None:
    loads = {head: HeadLoad() for head in HEADS}
    for turn, event in enumerate(events, 1):
        busiest = max(HEADS, key=lambda head: loads[head].in_flight)
        if event == "begin":
            head = order_heads(HEADS, loads, now=0.0)[0]
            loads[head] = loads[head].begun(turn)
        elif loads[busiest].in_flight:
            loads[busiest] = loads[busiest].ended()
        counts = [load.in_flight for load in loads.values()]
        assert max(counts) - min(counts) <= 1


def test_head_workers_of_all_meshes_are_joined_each_once() -> None:
    assert join_findings([("a", "b"), UNKNOWN, ("b", "c"), SILENT]) == ("a", "b", "c")


@pytest.mark.parametrize(
    ("findings", "raised"),
    [
        ([UNKNOWN, UNCOVERED, SILENT], UNCOVERED),
        ([SILENT, UNKNOWN], UNKNOWN),
        ([SILENT], SILENT),
    ],
)
def test_the_most_telling_refusal_is_raised(findings: list[ApiError], raised: ApiError) -> None:
    with pytest.raises(ApiError) as caught:
        join_findings(findings)

    assert caught.value is raised
