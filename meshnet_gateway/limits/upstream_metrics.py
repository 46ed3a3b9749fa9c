"""What an Endpoint's own `/metrics` page says of its load; pure.

Known are the names of vLLM, SGLang and llama.cpp. What a page does not say is None: nobody may
take silence for an idle Endpoint.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import isfinite

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

WAITING = ("vllm:num_requests_waiting", "sglang:num_queue_reqs", "llamacpp:requests_deferred")
WAITING_BY_REASON = "vllm:num_requests_waiting_by_reason"
RUNNING = ("vllm:num_requests_running", "sglang:num_running_reqs", "llamacpp:requests_processing")
KV_USE = (
    "vllm:kv_cache_usage_perc",
    "vllm:gpu_cache_usage_perc",
    "sglang:token_usage",
    "llamacpp:kv_cache_usage_ratio",
)
FOR_CAPACITY = "capacity"


@dataclass(frozen=True, slots=True)
class UpstreamLoad:
    """An Endpoint's load by its own word."""

    waiting: int | None = None
    """Requests that wait for room; one that waits for anything else says nothing of the load."""
    running: int | None = None
    kv_use: float | None = None
    """The share of its keys and values that are in use, of the fullest of its engines."""


def read_load(page: str, model: str) -> UpstreamLoad:
    """Read a page; of models that it tells apart only `model` counts, if it is among them.

    Raises ValueError for a page that is none.
    """
    families = text_string_to_metric_families(page)
    known = [one for family in families for one in family.samples if _is_possible(one.value)]
    samples = _of_model(known, model)
    by_reason = [
        one.value
        for one in samples
        if one.name == WAITING_BY_REASON and one.labels.get("reason") == FOR_CAPACITY
    ]
    return UpstreamLoad(
        _count(by_reason or _values(samples, WAITING)),
        _count(_values(samples, RUNNING)),
        max(_values(samples, KV_USE), default=None),
    )


def _is_possible(value: float) -> bool:
    return isfinite(value) and value >= 0


def _of_model(samples: Sequence[Sample], model: str) -> list[Sample]:
    names = {one.labels["model_name"] for one in samples if "model_name" in one.labels}
    if model not in names:
        return list(samples)
    return [one for one in samples if one.labels.get("model_name", model) == model]


def _values(samples: Iterable[Sample], names: Sequence[str]) -> list[float]:
    return [one.value for one in samples if one.name in names]


def _count(values: Sequence[float]) -> int | None:
    return int(sum(values)) if values else None
