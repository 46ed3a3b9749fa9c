import msgspec
import pytest

from meshnet_gateway.calibration.probes import Sample, level_of, request_body, units_of


def test_no_two_requests_begin_alike() -> None:
    bodies = [request_body("m", "chat", number, 8) for number in range(200)]
    prompts = [msgspec.json.decode(body)["messages"][0]["content"] for body in bodies]

    assert len({prompt.partition(" ")[0] for prompt in prompts}) == 200
    assert all(abs(len(prompt) - len(prompts[0])) < 20 for prompt in prompts)


def test_a_request_is_one_of_its_models_kind() -> None:
    chat = msgspec.json.decode(request_body("m", "chat", 1, 8))
    embedding = msgspec.json.decode(request_body("m", "embedding", 1, 8))

    assert (chat["model"], chat["max_tokens"]) == ("m", 8)
    assert set(embedding) == {"model", "input"}


def test_a_chat_counts_its_tokens_and_an_embedding_its_inputs() -> None:
    assert units_of("chat", b'{"usage": {"completion_tokens": 7}, "choices": []}') == 7
    assert units_of("embedding", b'{"data": [{"embedding": [1]}, {}]}') == 2


@pytest.mark.parametrize("body", [b"", b"{", b"{}", b'{"usage": null}'])
def test_what_is_no_answer_counts_as_none(body: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        units_of("chat", body)


def test_throughput_is_as_if_all_were_in_flight_all_the_time() -> None:
    level = level_of(4, [Sample(2.0, 10)] * 4, failures=0, waiting=None)

    assert (level.concurrency, level.throughput) == (4, 20.0)


def test_percentiles_are_nearest_ranks() -> None:
    level = level_of(1, [Sample(float(seconds), 1) for seconds in range(1, 21)], 2, 3)

    assert (level.p50_seconds, level.p95_seconds) == (10.0, 19.0)
    assert (level.failures, level.waiting) == (2, 3)


def test_a_level_without_an_answer_has_no_throughput() -> None:
    level = level_of(2, [], failures=2, waiting=None)

    assert (level.throughput, level.p50_seconds, level.p95_seconds) == (0.0, 0.0, 0.0)
