"""The requests that a calibration sends, what their answers say, and what a level comes to."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

import msgspec

from meshnet_gateway.calibration.knee import Level
from meshnet_gateway.config.settings import Kind

URL_PATHS = {"chat": "/v1/chat/completions", "embedding": "/v1/embeddings"}

_WORDS = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_INPUT_WORDS = 64


@dataclass(frozen=True, slots=True)
class Sample:
    """One answer that came; `units` are its tokens, or its inputs for embeddings."""

    seconds: float
    units: int


class _Usage(msgspec.Struct):
    completion_tokens: int


class _ChatAnswer(msgspec.Struct):
    usage: _Usage


class _EmbeddingAnswer(msgspec.Struct):
    data: list[msgspec.Raw]


def request_body(model: str, kind: Kind, number: int, answer_tokens: int) -> bytes:
    """Write a request; each number begins otherwise, so that no cache answers for it."""
    words = " ".join(_WORDS[(number + index) % len(_WORDS)] for index in range(_INPUT_WORDS))
    text = f"{number}: {words}"
    if kind == "embedding":
        return msgspec.json.encode({"model": model, "input": text})
    return msgspec.json.encode(
        {
            "model": model,
            "messages": [{"role": "user", "content": f"{text}. Go on for as long as you can."}],
            "max_tokens": answer_tokens,
        }
    )


def units_of(kind: Kind, body: bytes) -> int:
    """Count what an answer holds; raises msgspec.DecodeError for what is none."""
    if kind == "embedding":
        return len(msgspec.json.decode(body, type=_EmbeddingAnswer).data)
    return msgspec.json.decode(body, type=_ChatAnswer).usage.completion_tokens


def level_of(
    concurrency: int, samples: Sequence[Sample], failures: int, waiting: int | None
) -> Level:
    """Sum a level up.

    Throughput is by Little's law, concurrency over mean time: so neither the start nor the end of
    a level, where fewer are in flight, counts as slow.
    """
    seconds = sorted(sample.seconds for sample in samples)
    total = sum(seconds)
    units = sum(sample.units for sample in samples)
    return Level(
        concurrency=concurrency,
        throughput=concurrency * units / total if total else 0.0,
        p50_seconds=_percentile(seconds, 0.5),
        p95_seconds=_percentile(seconds, 0.95),
        waiting=waiting,
        failures=failures,
    )


def _percentile(ordered: Sequence[float], share: float) -> float:
    """Return the nearest rank, or 0 of nothing."""
    return ordered[ceil(share * len(ordered)) - 1] if ordered else 0.0
