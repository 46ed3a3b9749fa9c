from hypothesis import given
from hypothesis import strategies as st

from meshnet_gateway.limits.pace import ChatPace, EmbeddingPace, LengthClass, Measure, Part


def test_a_streamed_answer_tells_of_its_prompt_and_of_its_tokens() -> None:
    pace = ChatPace(100, 11, first_token_seconds=2.0, last_token_seconds=3.0)
    assert pace.parts() == (
        Part(LengthClass(Measure.PREFILL, 3), 100, 2.0),
        Part(LengthClass(Measure.DECODE, 1), 10, 1.0),
    )


def test_an_answer_in_one_piece_is_compared_with_others_in_one_piece() -> None:
    pace = ChatPace(100, 20, first_token_seconds=0.0, last_token_seconds=3.0)
    assert pace.parts() == (Part(LengthClass(Measure.WHOLE, 2), 20, 3.0),)


def test_an_embedding_tells_of_its_input_tokens() -> None:
    assert EmbeddingPace(4, 2.0).parts() == (Part(LengthClass(Measure.EMBEDDING, 1), 4, 2.0),)


def test_an_answer_of_one_token_tells_nothing_of_the_time_between_tokens() -> None:
    (only,) = ChatPace(8, 1, first_token_seconds=1.0, last_token_seconds=1.0).parts()
    assert only.length.measure == Measure.PREFILL


def test_what_was_not_counted_or_not_timed_tells_nothing() -> None:
    assert ChatPace(0, 0, first_token_seconds=1.0, last_token_seconds=2.0).parts() == ()
    assert EmbeddingPace(8, 0.0).parts() == ()


@given(st.integers(2, 100_000), st.floats(1e-4, 10))
def test_however_long_an_answer_is_its_seconds_for_each_token_are_the_same(
    tokens: int, seconds: float
) -> None:
    pace = ChatPace(1, tokens + 1, first_token_seconds=1.0, last_token_seconds=1 + tokens * seconds)
    part = pace.parts()[-1]
    assert abs(part.seconds_per_token - seconds) <= 1e-9 + 1e-9 * seconds
    assert 4**part.length.number <= tokens < 4 ** (part.length.number + 1)
