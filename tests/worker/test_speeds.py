import asyncio
import time

import pytest

from meshnet_common.errors import MeshnetError
from meshnet_worker.engine_port import BATCH_TOKENS
from meshnet_worker.speeds import (
    LARGEST_BYTES,
    LEAST_ARRIVED_BYTES,
    LINK_SECONDS,
    SLOWDOWN,
    UNMEASURED_BATCH_SECONDS,
    Arrival,
    Speeds,
    link_bytes_per_second,
)


async def test_the_speed_is_that_of_the_bytes_without_the_round_trip() -> None:
    async def send(body: bytes) -> None:
        await asyncio.sleep(0.02 + len(body) / 10_000_000)

    assert 5e6 < await link_bytes_per_second(send) < 15e6


def test_the_speed_of_a_download_is_that_of_what_came() -> None:
    arrival = Arrival(0.0)
    arrival.hear(5 * LEAST_ARRIVED_BYTES, 1.0)
    arrival.hear(5 * LEAST_ARRIVED_BYTES + 10, 2.0)
    assert arrival.bytes_per_second == 0
    arrival.hear(9 * LEAST_ARRIVED_BYTES, 3.0)
    assert arrival.bytes_per_second == 2 * LEAST_ARRIVED_BYTES


async def test_a_slow_link_is_measured_with_little_and_in_time() -> None:
    sent: list[int] = []

    async def send(body: bytes) -> None:
        sent.append(len(body))
        await asyncio.sleep(len(body) / 200_000)

    began = time.monotonic()
    assert 1e5 < await link_bytes_per_second(send) < 3e5
    assert time.monotonic() - began < LINK_SECONDS
    assert sum(sent) < LARGEST_BYTES // 8


async def test_a_link_that_takes_too_long_ends_the_measurement() -> None:
    async def send(_body: bytes) -> None:
        await asyncio.sleep(60)

    began = time.monotonic()
    assert await link_bytes_per_second(send) == 0
    assert time.monotonic() - began < LINK_SECONDS + 1


async def test_a_tracker_that_takes_no_bodies_is_no_error() -> None:
    async def send(_body: bytes) -> None:
        raise MeshnetError("404")

    assert await link_bytes_per_second(send) == 0


def test_a_slow_machine_has_more_time_for_a_batch() -> None:
    speeds = Speeds(prefill_tokens_per_second_per_layer=1000.0)
    assert speeds.slow_batch_seconds(10) == pytest.approx(SLOWDOWN * BATCH_TOKENS / 100)


def test_a_machine_that_is_not_measured_yet_is_given_time() -> None:
    assert Speeds().slow_batch_seconds(10) == UNMEASURED_BATCH_SECONDS
