"""What it costs to get from one Worker of a Route to the next: measured, else estimated; pure.

Half a measured round trip. Where none was measured, the shortest one between the two Localities,
else what is usual inside one, between two, or between Workers of which nothing is known.
"""

from collections.abc import Sequence

from meshnet_tracker.planning.route_index import Shard, VariantIndex

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


def latencies(shards: Sequence[Shard], index: VariantIndex) -> Matrix:
    """Return seconds from each to each: half the round trips."""
    places = [shard.locality for shard in shards]
    rows = {}
    for here in set(places):
        half = {there: _estimate(here, there, index) / 2 for there in set(places)}
        rows[here] = [half[place] for place in places]
    matrix = [rows[place].copy() for place in places]
    numbers = {shard.worker_id: number for number, shard in enumerate(shards)}
    for number, shard in enumerate(shards):
        matrix[number][number] = 0.0
        for peer_id in shard.round_trips.keys() & numbers.keys():
            peer = numbers[peer_id]
            if peer != number:
                seconds = round_trip_seconds(shard, shards[peer], index) / 2
                matrix[number][peer] = matrix[peer][number] = seconds
    return matrix


def take_overs(shards: Sequence[Shard], ways: Matrix, hop_seconds: float, hop_bytes: int) -> Matrix:
    """Return seconds from each to each for a Hop: the way, what is sent, and an overhead."""
    if not hop_bytes:
        return [[seconds + hop_seconds for seconds in row] for row in ways]
    places = [shard.locality for shard in shards]
    matrix = []
    for shard, row in zip(shards, ways, strict=True):
        sends = hop_seconds + _line_seconds(shard, hop_bytes)
        here = shard.locality
        matrix.append(
            [
                seconds + (hop_seconds if here and here == place else sends)
                for seconds, place in zip(row, places, strict=True)
            ]
        )
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
