from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from meshnet_worker.text.stopping import StopMatcher

# Few letters, so that stop strings overlap each other and themselves.
STOPS = st.lists(st.text("ab\n", min_size=1, max_size=6), min_size=1, max_size=4)
TEXT = st.text("ab\n", max_size=60)


def passed(text: str, stops: list[str], cuts: list[int] | None = None) -> tuple[str, bool]:
    matcher = StopMatcher(stops)
    places = range(1, len(text)) if cuts is None else cuts
    edges = sorted({0, len(text), *(min(cut, len(text)) for cut in places)})
    out = "".join(matcher.push(text[start:end]) for start, end in pairwise(edges))
    return out + matcher.finish(), matcher.stopped


def before_the_first_stop(text: str, stops: list[str]) -> tuple[str, bool]:
    """The rule in its plainest form: the first stop to be complete, then the longest, ends it."""
    for end in range(1, len(text) + 1):
        starts = [end - len(stop) for stop in stops if text[:end].endswith(stop)]
        if starts:
            return text[: min(starts)], True
    return text, False


@pytest.mark.parametrize(
    ("text", "stops", "result"),
    [
        ("Thought: x\nObservation: y", ["Observation:"], "Thought: x\n"),
        ("aaab", ["aab"], "a"),
        ("abcabx", ["abx"], "abc"),
        ("ab", ["abc"], "ab"),
        ("one two", ["two", "e t"], "on"),
        ("xENDING", ["ENDING", "END"], "x"),
        ("END", ["END"], ""),
        ("😀😀!", ["😀!"], "😀"),
        ("nothing", [], "nothing"),
    ],
)
def test_text_ends_before_the_stop_string(text: str, stops: list[str], result: str) -> None:
    assert passed(text, stops)[0] == result
    assert passed(text, stops, [])[0] == result


@given(TEXT, STOPS, st.lists(st.integers(0, 60)))
@example("abcd", ["abcd", "c"], [])
def test_any_chunking_gives_what_the_plain_rule_gives(
    text: str, stops: list[str], cuts: list[int]
) -> None:
    expected = before_the_first_stop(text, stops)

    assert passed(text, stops, cuts) == expected
    assert passed(text, stops) == expected


@given(TEXT, STOPS)
def test_no_stop_string_is_ever_passed_on(text: str, stops: list[str]) -> None:
    out, _ = passed(text, stops)

    assert not any(stop in out for stop in stops)


@given(TEXT, STOPS)
def test_only_a_possible_stop_string_is_held_back(text: str, stops: list[str]) -> None:
    matcher = StopMatcher(stops)
    out = matcher.push(text)
    held = "" if matcher.stopped else text[len(out) :]

    assert matcher.stopped or held == "" or any(stop.startswith(held) for stop in stops)


def of_tokens(tokens: list[str], stops: list[str], least: int) -> tuple[str, bool]:
    matcher, out = StopMatcher(stops, least), ""
    for token in tokens:
        matcher.next_token()
        out += matcher.push(token)
    return out + matcher.finish(), matcher.stopped


@given(st.lists(st.text("ab\n", max_size=4), max_size=12), STOPS, st.integers(0, 14))
@example(["a", "b", "ab"], ["ab"], 2)
@example(["aa", "a"], ["aa"], 1)
def test_only_a_stop_string_that_ends_behind_the_least_tokens_counts(
    tokens: list[str], stops: list[str], least: int
) -> None:
    text, free = "".join(tokens), len("".join(tokens[:least]))
    ends = [
        (end, -len(stop))
        for end in range(free + 1, len(text) + 1)
        for stop in stops
        if text[:end].endswith(stop)
    ]
    end, length = min(ends, default=(len(text), 0))
    assert of_tokens(tokens, stops, least) == (text[: end + length], bool(ends))


def test_nothing_follows_a_stop_string() -> None:
    matcher = StopMatcher(["END"])

    assert matcher.push("a END b") == "a "
    assert (matcher.push("more"), matcher.finish(), matcher.stopped) == ("", "", True)


def test_a_growing_partial_stop_costs_no_more_than_its_length() -> None:
    stop = "a" * 4000 + "b"
    matcher = StopMatcher([stop])
    out = "".join(matcher.push("a" * 10) for _ in range(2000))

    assert len(out) == 20_000 - 4000
    assert out + matcher.finish() == "a" * 20_000
