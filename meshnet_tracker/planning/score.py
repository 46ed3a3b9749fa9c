"""How good a placement is, without running a single request.

In this order: Layers that nobody serves, the longest gap, whether the thinnest Layer has a second
Worker, tokens per second, latency. Throughput is bounded by what Workers can compute (`flow.py`)
and by the Sessions that fit divided by the time that one token takes:

- Sessions fit as far as memory beside the weights goes, at the tightest Layers;
- a token takes its time on each Layer, shared between those who hold it by their speed. Where few
  do, tokens queue behind prompts: a Worker alone with a Layer makes all of them wait;
- every Hop costs, and changing to another Locality costs a long way. Prompts go there slowly, in
  the way of everything behind them, so that throughput falls with it too;
- where ranges begin and end at many Layers, Sessions part and meet, and steps are small.

Fitted to the event simulation of requests in `bench/placement`, to rank placements as it does.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt

from meshnet_common.ids import WorkerId
from meshnet_common.shard_range import ShardRange
from meshnet_tracker.planning.capacity import LayerSizes
from meshnet_tracker.planning.coverage import count_layers, gaps_of
from meshnet_tracker.planning.flow import layer_flows, most_flow
from meshnet_tracker.planning.orders import Candidate, capacity

Run = tuple[Candidate, ShardRange]

FULL_STEP = 0.25
"""A step for one token takes such a part of a full one: weights are read once for all of them."""
MOST_STEP_TOKENS = 75.0
ALONE = 4.0
"""How much longer a token waits at a Worker that has the Layer alone, in its own time there."""
SPLITTING = 0.3
"""How throughput falls with the number of stretches: a step is for fewer Sessions at once."""
HOP_SECONDS = 0.002
FAR_SECONDS = 0.1
"""One way to another Locality, until it is measured."""
TYPICAL_TOKENS = 1000
"""Prompt and answer of a request: for so many KV Blocks are kept."""
TYPICAL_ANSWER_TOKENS = 250
ENOUGH_REPLICAS = 2
DIGITS = 9
"""Scores are compared to so many places, so that rounding never decides."""


@dataclass(frozen=True, slots=True, order=True)
class Score:
    """Larger is better."""

    covered_layers: int
    shortest_gap: int
    """Minus the longest gap."""
    replicas: int
    """Of the thinnest Layer; two are as good as more."""
    tokens_per_second: float
    quickness: float
    """Minus the seconds that a token takes."""


def score(sizes: LayerSizes, runs: Iterable[Run]) -> Score:
    """Judge a placement; the order of the runs changes nothing."""
    placed = sorted(runs, key=lambda run: run[0].worker_id)
    layers = sizes.layer_count
    counts = count_layers((run for _, run in placed), layers)
    gaps = gaps_of(counts)
    covered = layers - sum(map(len, gaps))
    if gaps:
        return Score(covered, -max(map(len, gaps)), 0, 0.0, 0.0)
    seconds, crossings = token_seconds(sizes, placed), far_crossings(placed, layers)
    throughput = _flow(placed, layers)
    sessions = sessions_that_fit(sizes, placed)
    if sessions is not None:
        tokens_each = TYPICAL_TOKENS / TYPICAL_ANSWER_TOKENS
        throughput = _both(throughput, tokens_each * sessions / seconds)
    throughput /= (1 + crossings) * _stretches(placed) ** SPLITTING
    thinnest = min(*counts, ENOUGH_REPLICAS)
    return Score(layers, 0, thinnest, round(throughput, DIGITS), -round(seconds, DIGITS))


def score_of(
    sizes: LayerSizes, workers: Mapping[WorkerId, Candidate], placed: Mapping[WorkerId, ShardRange]
) -> Score:
    """Judge a placement by the Workers' ids."""
    return score(sizes, ((workers[worker_id], run) for worker_id, run in placed.items()))


def sessions_that_fit(sizes: LayerSizes, runs: Sequence[Run]) -> float | None:
    """Return how many Sessions have room for their KV Blocks; None if it is not known."""
    if not sizes.kv_bytes_per_layer or not all(worker.memory_bytes for worker, _ in runs):
        return None
    rooms = (
        (run, kv_room(worker, sizes.range_bytes(run)) / _session_bytes(sizes))
        for worker, run in runs
    )
    return most_flow(rooms, sizes.layer_count)


def sessions_alone(sizes: LayerSizes, worker: Candidate, layers: int) -> float:
    """Return how many Sessions fit beside so many Layers on one Worker, if it runs them all."""
    room = kv_room(worker, layers * sizes.bytes_per_layer)
    return room / (layers * _session_bytes(sizes))


def kv_room(worker: Candidate, weight_bytes: int) -> int:
    """Return what so many bytes of weights leave of a Worker's memory."""
    return max(0, worker.memory_bytes - weight_bytes)


def token_seconds(sizes: LayerSizes, runs: Sequence[Run]) -> float:
    """Return how long a token takes, on average, when every Layer has somebody."""
    speeds = _speeds(runs, sizes.layer_count)
    seconds = FAR_SECONDS * far_crossings(runs, sizes.layer_count)
    for worker, run in runs:
        speed = worker.rate(1) / len(run)
        shares = [speed / speeds[layer] for layer in run.layers]
        waits = sum(share + ALONE * share**4 for share in shares)
        seconds += waits * step_seconds(sizes, worker) + HOP_SECONDS * sum(shares) / len(run)
    return seconds


def step_seconds(sizes: LayerSizes, worker: Candidate) -> float:
    """Return how long a small step takes at one Layer of a Worker.

    Measured rates are those of full steps, with as many Sessions as fit beside all Layers that it
    can hold; a plain speed is that of single tokens.
    """
    if not worker.layer_rates or not worker.memory_bytes or not sizes.kv_bytes_per_layer:
        return 1 / worker.rate(1)
    most = max(1, min(capacity(sizes, worker), len(worker.layer_rates)))
    tokens = FULL_STEP * sessions_alone(sizes, worker, most)
    return max(1.0, min(MOST_STEP_TOKENS, tokens)) / worker.layer_rates[0]


def _session_bytes(sizes: LayerSizes) -> int:
    return sizes.kv_bytes_per_layer * TYPICAL_TOKENS


def _flow(runs: Sequence[Run], layer_count: int) -> float:
    """Return what Workers can compute: between what they do unasked and what is best for all."""
    speeds = [(run, worker.rate(len(run))) for worker, run in runs]
    return sqrt(min(layer_flows(speeds, layer_count)) * most_flow(speeds, layer_count))


def _stretches(runs: Iterable[Run]) -> int:
    """Count the stretches of Layers in which nobody begins or ends."""
    return len({edge for _, run in runs for edge in (run.start, run.end)}) - 1


def _both(one: float, other: float) -> float:
    """Return what is left of two bounds of which neither is ever quite reached near the other."""
    return (one**-2 + other**-2) ** -0.5 if one > 0 and other > 0 else 0.0


def far_crossings(runs: Sequence[Run], layer_count: int) -> float:
    """Count how often a token changes Localities, its way from the last Worker to the first too."""
    names = sorted({worker.locality for worker, _ in runs})
    if len(names) < 2:
        return 0.0
    speeds = _speeds(runs, layer_count)
    crossings = 0.0
    for name in names:
        here = _speeds([each for each in runs if each[0].locality == name], layer_count)
        shares = [own / of_all for own, of_all in zip(here, speeds, strict=True)]
        crossings += sum(max(0.0, shares[i - 1] - shares[i]) for i in range(layer_count))
    return crossings


def _speeds(runs: Iterable[Run], layer_count: int) -> list[float]:
    """Add up how fast each Layer runs."""
    speeds = [0.0] * layer_count
    for worker, run in runs:
        speed = worker.rate(1) / len(run)
        for layer in run.layers:
            speeds[layer] += speed
    return speeds
