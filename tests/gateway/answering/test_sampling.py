import base64
import json

import pytest

from meshnet_common.edge.clock import ManualClock
from meshnet_common.edge.forwarding import (
    UpstreamError,
    UpstreamRefusedError,
    UpstreamUnreachableError,
    WholeAnswer,
)
from meshnet_common.openai.errors import overloaded, rate_limited
from meshnet_common.openai.sse import DONE_EVENT, KEEP_ALIVE_COMMENT, data_event
from meshnet_gateway.answering.sampling import NotServedError, Sampler, dimensions_of
from meshnet_gateway.limits.pace import ChatPace, EmbeddingPace
from tests.gateway.answering.test_asked import asked

USAGE = b'{"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 9}}'


def whole(body: bytes, status: int = 200) -> WholeAnswer:
    return WholeAnswer(status, {}, body)


def sampler(url_path: str = "/v1/chat/completions", body: bytes = b"x" * 40) -> Sampler:
    return Sampler(asked(url_path, body), ManualClock(0.0))


def test_the_first_and_the_last_event_of_a_stream_are_timed() -> None:
    clock = ManualClock(0.0)
    one = Sampler(asked(body=b"x" * 40), clock)
    assert (one.heard_at, one.has_begun) == (0.0, False)
    for pause, data in (
        (1.0, KEEP_ALIVE_COMMENT),
        (1.0, data_event(b"{}")),
        (0.5, KEEP_ALIVE_COMMENT),
        (0.5, data_event(b"{}") + KEEP_ALIVE_COMMENT + data_event(b"{}")),
        (9.0, KEEP_ALIVE_COMMENT),
    ):
        clock.advance(pause)
        one.saw_events(data)

    assert one.pace() == ChatPace(10, 3, 2.0, 3.0)
    assert (one.heard_at, one.has_begun) == (12.0, True)


@pytest.mark.parametrize(
    "usage",
    [
        USAGE,
        b'{"type": "response.completed", "usage": {"input_tokens": 7, "output_tokens": 9}}',
    ],
)
def test_tokens_are_counted_as_the_upstream_says(usage: bytes) -> None:
    one = sampler()
    one.saw_events(data_event(b"{}"))
    one.saw_events(data_event(usage) + DONE_EVENT)

    pace = one.pace()
    assert isinstance(pace, ChatPace)
    assert (pace.prompt_tokens, pace.answer_tokens) == (7, 9)


def test_what_was_kept_of_a_prompt_took_no_time() -> None:
    one = sampler()
    details = b'{"usage": {"prompt_tokens": 7, "completion_tokens": 1, "prompt_tokens_details": '
    one.saw_whole(whole(details + b'{"cached_tokens": 5}}}'))
    pace = one.pace()

    assert isinstance(pace, ChatPace)
    assert pace.prompt_tokens == 2


def test_a_whole_answer_tells_its_tokens() -> None:
    one = sampler()
    one.saw_whole(whole(USAGE))
    pace = one.pace()

    assert isinstance(pace, ChatPace)
    assert (pace.prompt_tokens, pace.answer_tokens) == (7, 9)


def test_an_embedding_is_timed_by_its_input() -> None:
    one = sampler("/v1/embeddings")
    one.saw_whole(whole(b'{"usage": {"prompt_tokens": 7}}'))

    assert one.pace() == EmbeddingPace(7, 0.0)


def test_an_answer_without_tokens_says_nothing() -> None:
    one = sampler()
    one.saw_whole(whole(b'{"input_tokens": 3}'))

    assert one.pace() is None


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (whole(b"<html>"), UpstreamUnreachableError),
        (whole(b"[]"), UpstreamUnreachableError),
        (whole(b'{"half": '), UpstreamUnreachableError),
        (whole(b"{}", 302), UpstreamUnreachableError),
        (whole(b"{}", 500), UpstreamRefusedError),
        (whole(b"{}", 504), UpstreamRefusedError),
        (whole(b"busy", 429), UpstreamRefusedError),
        (whole(overloaded("Full.", 1).to_json(), 429), UpstreamRefusedError),
        (whole(b'{"error": "The model `smol` does not exist."}', 404), NotServedError),
    ],
)
def test_what_another_endpoint_may_do_better_does_not_go_on(
    answer: WholeAnswer, error: type[UpstreamError]
) -> None:
    with pytest.raises(error):
        sampler().saw_whole(answer)


@pytest.mark.parametrize(
    "answer",
    [
        whole(b"{}"),
        whole(b' {"usage": 1}'),
        whole(b"No.", 400),
        whole(b"{}", 404),
        whole(rate_limited("Slow down.", "requests", 1).to_json(), 429),
    ],
)
def test_what_is_the_clients_own_goes_on(answer: WholeAnswer) -> None:
    sampler().saw_whole(answer)


def test_dimensions_are_counted_in_either_encoding() -> None:
    numbers = json.dumps({"data": [{"embedding": [0.5, 1, 2]}]}).encode()
    packed = base64.b64encode(bytes(4 * 5)).decode()

    assert dimensions_of(numbers) == 3
    assert dimensions_of(json.dumps({"data": [{"embedding": packed}]}).encode()) == 5
    assert dimensions_of(b'{"data": []}') is None
    for junk in (
        b"",
        b"{}",
        b'{"data": [{"embedding": [[1, 2]]}]}',
        b'{"data": [{"embedding": "***"}]}',
        b'{"data": [{"embedding": [ ]}]}',
        b'{"data": [{"embedding": null}]}',
        b'{"data": [{"embedding": {}}]}',
    ):
        assert dimensions_of(junk) == 0


def test_an_embedding_of_other_dimensions_does_not_go_on() -> None:
    one = Sampler(
        asked("/v1/embeddings"), ManualClock(0.0), fits=lambda dimensions: dimensions == 3
    )
    one.saw_whole(whole(b'{"data": [{"embedding": [1, 2, 3]}]}'))
    with pytest.raises(UpstreamUnreachableError):
        one.saw_whole(whole(b'{"data": [{"embedding": [1, 2]}]}'))
