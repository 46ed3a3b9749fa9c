from array import array
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import cast

import pytest
import torch

from meshnet_worker.engine import encoder_passes
from meshnet_worker.engine.encoder import WHOLE, Encoder
from meshnet_worker.engine.encoder_passes import LEAST_TOKENS, MOST_TOKENS, PASS_SECONDS
from meshnet_worker.engine.encoding import Encoding
from meshnet_worker.engine_port import (
    DropTexts,
    EncodeFailed,
    EncodeTexts,
    Event,
    TextsEncoded,
)
from tests.worker.engine.test_encoder import CONFIGS, opened, save

SHARD = 3


class Heard:
    """What an Encoding has said."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.payloads: list[bytes] = []

    def __call__(self, event: Event, payload: bytes) -> None:
        self.events.append(event)
        self.payloads.append(payload)


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Encoder:
    return opened(save(tmp_path_factory.mktemp("bert"), CONFIGS["BertModel"]))


def asked(encoding: Encoding, request: int, *texts: list[int], shard: int = SHARD) -> None:
    ids = array("i", [token_id for text in texts for token_id in text])
    encoding.add(EncodeTexts(request, shard, tuple(map(len, texts))), ids.tobytes())


def steady(
    encoder: Encoder, heard: Heard, tokens: int, monkeypatch: pytest.MonkeyPatch
) -> Encoding:
    """Passes that begin with so many tokens, and take as long as they should."""
    monkeypatch.setattr(encoder_passes, "LEAST_TOKENS", tokens)
    looks = count()
    return Encoding({SHARD: encoder}, heard, lambda: next(looks) * 0.9 * PASS_SECONDS)


def rows(payload: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(payload), dtype=torch.float32).reshape(-1, 32)


def test_vectors_come_in_the_order_of_the_texts_whatever_passes_they_ran_in(
    encoder: Encoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard = Heard()
    encoding = steady(encoder, heard, 6, monkeypatch)
    texts = [[5, 6, 7, 8], [9], [10, 11], [12] * 9, [13]]
    asked(encoding, 1, *texts)
    steps = 0
    while encoding.has_work:
        assert heard.events == []
        encoding.step()
        steps += 1
    assert steps == 3
    assert heard.events == [TextsEncoded(1)]
    alone = torch.cat([encoder.encode([torch.tensor(text)]) for text in texts])
    torch.testing.assert_close(rows(heard.payloads[0]), alone, rtol=0, atol=1e-5)


def test_requests_are_answered_one_after_the_other(encoder: Encoder) -> None:
    heard = Heard()
    encoding = Encoding({SHARD: encoder}, heard)
    asked(encoding, 1, [5])
    asked(encoding, 2, [6])
    while encoding.has_work:
        encoding.step()
    assert heard.events == [TextsEncoded(1), TextsEncoded(2)]


def test_a_request_of_few_texts_does_not_wait_for_all_of_another(
    encoder: Encoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard = Heard()
    encoding = steady(encoder, heard, 1, monkeypatch)
    asked(encoding, 1, *[[5]] * 3)
    asked(encoding, 2, [6])
    asked(encoding, 3, [7], [8])
    while encoding.has_work:
        encoding.step()
    assert heard.events == [TextsEncoded(2), TextsEncoded(3), TextsEncoded(1)]


def test_texts_that_nobody_wants_any_more_cost_no_further_pass(
    encoder: Encoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard = Heard()
    encoding = steady(encoder, heard, 1, monkeypatch)
    asked(encoding, 1, *[[5]] * 100)
    asked(encoding, 2, [6])
    asked(encoding, 3, [7])
    encoding.step()
    for request in (1, 3, 4):
        encoding.hear(DropTexts(request), b"")
    encoding.step()
    assert heard.events == [TextsEncoded(2)]
    assert not encoding.has_work


def test_a_request_that_fails_takes_no_other_with_it(encoder: Encoder, tmp_path: Path) -> None:
    heard = Heard()
    empty = opened(save(tmp_path, CONFIGS["BertModel"]))
    empty.drop(WHOLE)
    encoding = Encoding({SHARD: encoder, 4: empty}, heard)
    asked(encoding, 1, [5], shard=9)
    asked(encoding, 2, [100_000])
    asked(encoding, 3, [5], shard=4)
    asked(encoding, 4, [5])
    while encoding.has_work:
        encoding.step()
    *failed, last = heard.events
    assert [type(event) for event in failed] == [EncodeFailed] * 3
    assert last == TextsEncoded(4)


class Slow:
    """An encoder on a device that needs so long for a token, in a time of its own."""

    def __init__(self, seconds_a_token: float) -> None:
        self._seconds_a_token = seconds_a_token
        self.now = 0.0

    def encode(self, texts: Sequence[torch.Tensor]) -> torch.Tensor:
        self.now += self._seconds_a_token * len(texts) * max(map(len, texts))
        return torch.zeros(len(texts), 32)


@pytest.mark.parametrize("seconds_a_token", [1e-6, 1e-4, 1e-3])
def test_batches_get_half_of_the_time_however_slow_the_device_is(seconds_a_token: float) -> None:
    slow, heard = Slow(seconds_a_token), Heard()
    encoding = Encoding({SHARD: cast(Encoder, slow)}, heard, lambda: slow.now)
    asked(encoding, 1, *[[5] * 16] * 2000)
    batches = encoded = longest = 0.0
    while encoding.has_work:
        if wait := encoding.wait_seconds():
            slow.now += wait
            batches += wait
            encoding.give_way()
            continue
        began = slow.now
        encoding.step()
        # So long a Batch that has come meanwhile has waited.
        longest = max(longest, slow.now - began)
        encoded += slow.now - began
        encoding.give_way()
    assert heard.events == [TextsEncoded(1)]
    assert longest <= 1.01 * max(PASS_SECONDS, LEAST_TOKENS * seconds_a_token)
    assert encoded - longest <= 1.01 * batches <= 1.02 * encoded


def test_without_batches_nothing_rests() -> None:
    slow, heard = Slow(1e-6), Heard()
    encoding = Encoding({SHARD: cast(Encoder, slow)}, heard, lambda: slow.now)
    asked(encoding, 1, *[[5] * 16] * 2000)
    passes = 0
    while encoding.has_work:
        assert encoding.wait_seconds() == 0
        encoding.step()
        passes += 1
    assert passes <= 16 * 2000 / MOST_TOKENS + 5
