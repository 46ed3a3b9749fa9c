"""What it costs to get from one Worker of a Route to the next: measured, else estimated; pure.

Half a measured round trip. Where none was measured, the shortest one between the two Localities,
else what is usual inside one, between two, or between Workers of which nothing is known.
"""

from collections.abc import Iterator, Sequence
from math import inf
from operator import add
from typing import NamedTuple

from meshnet_tracker.planning.route_index import VariantIndex
from meshnet_tracker.planning.route_rows import Shard

INSIDE_SECONDS = 0.002
"""A round trip inside a Locality, if none is measured."""
BETWEEN_SECONDS = 0.08
"""One between two Localities."""
UNKNOWN_SECONDS = 0.03
"""One between Workers of which at least one's Locality is not known."""
UNMEASURED_BYTES_PER_SECOND = 1e6
"""What a Worker sends that has not measured it; that is slow."""

Matrix = list[list[float]]


def round_trip_seconds(one: Shard, two: Shard, index: VariantIndex) -> float:
    """Return the round trip between two Workers, as far as it is known."""
    if one.worker_id == two.worker_id:
        return 0.0
    there, back = one.round_trips.get(two.worker_id), two.round_trips.get(one.worker_id)
    if there is not None:
        return there if back is None else min(there, back)
    return _estimate(one.locality, two.locality, index) if back is None else back


class Ways(NamedTuple):
    """Half the round trips between some Shards, by their numbers."""

    places: tuple[str, ...]
    """The Locality of each."""
    to_places: dict[str, list[float]]
    """From each to each Locality, as far as nothing is measured between the two themselves."""
    measured: tuple[tuple[int, int, float], ...]
    """What is; both ways of each pair."""


def ways_between(shards: Sequence[Shard], index: VariantIndex) -> Ways:
    """Find the ways from each to each."""
    places = tuple([shard.locality for shard in shards])
    to_places = {}
    for there in set(places):
        half = {here: _estimate(here, there, index) / 2 for here in set(places)}
        to_places[there] = [half[here] for here in places]
    return Ways(places, to_places, tuple(_measured(shards, index)))


def _measured(shards: Sequence[Shard], index: VariantIndex) -> Iterator[tuple[int, int, float]]:
    numbers = {shard.worker_id: number for number, shard in enumerate(shards)}
    for number, shard in enumerate(shards):
        if not shard.round_trips or shard.round_trips.keys().isdisjoint(numbers):
            continue
        for peer_id in shard.round_trips.keys() & numbers.keys():
            peer = numbers[peer_id]
            seconds = round_trip_seconds(shard, shards[peer], index) / 2
            yield number, peer, seconds
            yield peer, number, seconds


def latencies(ways: Ways) -> Matrix:
    """Return seconds from each to each."""
    matrix = [ways.to_places[place].copy() for place in ways.places]
    for one, two, seconds in ways.measured:
        matrix[one][two] = seconds
    for number, row in enumerate(matrix):
        row[number] = 0.0
    return matrix


def take_overs(shards: Sequence[Shard], ways: Ways, hop_seconds: float, hop_bytes: int) -> Matrix:
    """Return seconds for a Hop to each from each: the way, what is sent, and an overhead.

    No Hop leads from a Worker to itself, so that costs infinitely much.
    """
    places = ways.places
    sends = [hop_seconds] * len(shards)
    if hop_bytes:
        sends = [hop_seconds + _line_seconds(shard, hop_bytes) for shard in shards]

    hops = {
        there: [
            hop_seconds if there and there == here else seconds
            for here, seconds in zip(places, sends, strict=True)
        ]
        for there in ways.to_places
    }
    to_places = {there: list(map(add, row, hops[there])) for there, row in ways.to_places.items()}
    matrix = [to_places[place].copy() for place in places]
    for two, one, seconds in ways.measured:
        matrix[two][one] = seconds + hops[places[two]][one]
    for number, row in enumerate(matrix):
        row[number] = inf
    return matrix


def sending_seconds(one: Shard, two: Shard, hop_bytes: int) -> float:
    """How long the line of one is busy with what it sends to the other; inside a Locality, not."""
    if not hop_bytes or (one.locality and one.locality == two.locality):
        return 0.0
    return _line_seconds(one, hop_bytes)


def _line_seconds(shard: Shard, hop_bytes: int) -> float:
    return hop_bytes / (shard.worker.uplink_bytes_per_sec or UNMEASURED_BYTES_PER_SECOND)


def _estimate(one: str, two: str, index: VariantIndex) -> float:
    if not one or not two:
        return UNKNOWN_SECONDS
    measured = index.trip_between(one, two)
    if measured is not None:
        return measured
    return INSIDE_SECONDS if one == two else BETWEEN_SECONDS
