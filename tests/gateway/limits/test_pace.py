from hypothesis import given
from hypothesis import strategies as st

from meshnet_gateway.limits.pace import ChatPace, EmbeddingPace, LengthClass, Measure, Sample


def test_a_chat_answer_tells_of_its_prompt_and_of_its_tokens() -> None:
    pace = ChatPace(100, 11, first_token_seconds=2.0, last_token_seconds=3.0)
    assert pace.samples() == (
        Sample(LengthClass(Measure.PREFILL, 3), 0.02),
        Sample(LengthClass(Measure.DECODE, 1), 0.1),
    )


def test_an_embedding_tells_of_its_input_tokens() -> None:
    assert EmbeddingPace(4, 2.0).samples() == (Sample(LengthClass(Measure.EMBEDDING, 1), 0.5),)


def test_an_answer_of_one_token_tells_nothing_of_the_time_between_tokens() -> None:
    (only,) = ChatPace(8, 1, first_token_seconds=1.0, last_token_seconds=1.0).samples()
    assert only.length.measure == Measure.PREFILL


def test_what_was_not_counted_or_not_timed_tells_nothing() -> None:
    assert ChatPace(0, 0, first_token_seconds=1.0, last_token_seconds=2.0).samples() == ()
    assert EmbeddingPace(8, 0.0).samples() == ()


@given(st.integers(2, 100_000), st.floats(1e-4, 10))
def test_however_long_an_answer_is_its_seconds_for_each_token_are_the_same(
    tokens: int, seconds: float
) -> None:
    pace = ChatPace(1, tokens + 1, first_token_seconds=1.0, last_token_seconds=1 + tokens * seconds)
    sample = pace.samples()[-1]
    assert abs(sample.seconds - seconds) <= 1e-9 + 1e-9 * seconds
    assert 4**sample.length.length_class <= tokens < 4 ** (sample.length.length_class + 1)
