"""What the Tracker accepts of a Worker's words, beyond their JSON types; pure.

Limits are those of the table's columns, so that nothing a Worker says is cut or refused later:
the words of many Workers share a transaction, and one that a database refuses would fail all.
"""

import re
from collections.abc import Collection, Iterable

from meshnet_common.openai.errors import ApiError, invalid_request
from meshnet_common.protocol.messages import (
    DirectiveReport,
    Heartbeat,
    RegisterWorker,
    RoundTrip,
    ShardReport,
)

MAX_INTEGER = 2**63 - 1
MAX_SHARDS = 1000
MAX_LAYER = 1_000_000
MAX_QUANTIZATIONS = 32
MAX_ROUND_TRIPS = 64
MAX_ROUND_TRIP_SECONDS = 60.0
MAX_SPEED = 1e15
"""Per second, of anything: beyond what there is, and far from where sums have no end."""

_LAYER_SPEEDS = ("decode_tokens_per_sec_per_layer", "prefill_tokens_per_sec_per_layer")
_OFFERED_SPEEDS = (
    "benchmark_tokens_per_sec",
    *_LAYER_SPEEDS,
    "memory_bytes_per_sec",
    "link_bytes_per_sec",
)
PLAIN_ID_RULE = "an id has 1 to 128 letters, digits or ._:-"
_PLAIN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")
_URL = re.compile(r"https?://[^\s/?#\x00]+/?")
_NUL = "\0"
"""PostgreSQL keeps every character of a text but this one."""


def is_plain_id(text: str) -> bool:
    """Whether a Worker or a Rebalance Directive may be called so."""
    return _PLAIN_ID.fullmatch(text) is not None


def check_registration(registration: RegisterWorker) -> None:
    """Raise ApiError 400 that names the field at fault."""
    offered = registration.capabilities
    if not is_plain_id(registration.worker_id):
        raise invalid_request("`worker_id` must be 1 to 128 letters, digits or ._:-", "worker_id")
    if len(registration.url) > 500 or not _URL.fullmatch(registration.url):
        raise invalid_request("`url` must be http://HOST:PORT or https://HOST:PORT", "url")
    _check_length("version", registration.version, 64)
    _check_length("fingerprint", registration.fingerprint, 128)
    _check_length("capabilities.device", offered.device, 200)
    _check_length("capabilities.region", offered.region, 64)
    _check_length("capabilities.benchmark_model", offered.benchmark_model, 200)
    _check_integer("capabilities.vram_bytes", offered.vram_bytes, least=1)
    for speed in _OFFERED_SPEEDS:
        _check_speed(f"capabilities.{speed}", getattr(offered, speed))
    if not 0 < len(offered.quantizations) <= MAX_QUANTIZATIONS:
        name = "capabilities.quantizations"
        raise invalid_request(f"`{name}` must name 1 to {MAX_QUANTIZATIONS}", name)
    for quantization in offered.quantizations:
        _check_length("capabilities.quantizations", quantization, 32)


def check_heartbeat(heartbeat: Heartbeat) -> None:
    """Raise ApiError 400 that names the field at fault."""
    _check_integer("sessions", heartbeat.sessions, most=2**31 - 1)
    _check_integer("kv_bytes_free", heartbeat.kv_bytes_free)
    _check_integer("directive_epoch", heartbeat.directive_epoch)
    _check_integer("queued", heartbeat.queued, most=2**31 - 1)
    _check_round_trips(heartbeat.round_trips)
    for speed in (*_LAYER_SPEEDS, "link_bytes_per_sec", "download_bytes_per_sec"):
        _check_speed(speed, getattr(heartbeat, speed))
    _check_length("speeds_of", heartbeat.speeds_of, 200)
    if len(heartbeat.shards) > MAX_SHARDS:
        raise invalid_request(f"`shards` has more than {MAX_SHARDS} entries", "shards")
    _check_shards(heartbeat.shards)


def check_report(report: DirectiveReport) -> None:
    """Raise ApiError 400 that names the field at fault."""
    _check_integer("bytes_done", report.bytes_done)
    _check_integer("bytes_total", report.bytes_total)
    _check_text("reason", report.reason)


def _check_round_trips(round_trips: Collection[RoundTrip]) -> None:
    if len(round_trips) > MAX_ROUND_TRIPS:
        raise _refusal("round_trips", f"has more than {MAX_ROUND_TRIPS} entries")
    for trip in round_trips:
        _check_length("round_trips.worker_id", trip.worker_id, 128)
        if not 0 <= trip.seconds <= MAX_ROUND_TRIP_SECONDS:
            raise _refusal("round_trips.seconds", f"must be 0 to {MAX_ROUND_TRIP_SECONDS:.0f}")


def _check_shards(shards: Iterable[ShardReport]) -> None:
    for shard in shards:
        if not 0 <= shard.start_layer < shard.end_layer <= MAX_LAYER:
            raise invalid_request(
                f"[{shard.start_layer}, {shard.end_layer}) is no Shard Range", "shards"
            )
        _check_length("shards.model", shard.model, 200)
        _check_length("shards.quantization", shard.quantization, 32)
        _check_length("shards.digest", shard.digest, 64)
        _check_integer("shards.bytes_done", shard.bytes_done)
        _check_integer("shards.bytes_total", shard.bytes_total)


def _check_length(name: str, text: str, most: int) -> None:
    if len(text) > most:
        raise _refusal(name, f"is longer than {most} characters")
    _check_text(name, text)


def _check_text(name: str, text: str) -> None:
    if _NUL in text:
        raise _refusal(name, "has a NUL character")


def _check_speed(name: str, value: float) -> None:
    if not 0 <= value <= MAX_SPEED:
        raise _refusal(name, f"must be a number from 0 to {MAX_SPEED:.0e}")


def _check_integer(name: str, value: int, least: int = 0, most: int = MAX_INTEGER) -> None:
    if not least <= value <= most:
        raise _refusal(name, f"must be between {least} and {most}")


def _refusal(name: str, what: str) -> ApiError:
    return invalid_request(f"`{name}` {what}", name)
