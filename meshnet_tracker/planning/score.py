"""How good a placement is, without running a single request.

In this order: Layers that nobody serves, the longest gap, worth, latency. The worth is the tokens
per second that the Sessions which fit get through, when one token takes longer the more there are:

- Sessions fit as far as memory beside the weights goes, at the tightest Layer;
- a Layer's tokens are shared between those who hold it, by their speed; a step reads all weights,
  be it for one token, so it takes longer the busier a Worker is (`FULL_STEP_TOKENS`);
- where Workers that follow each other have their Layers alone, nobody can pass: all wait for each
  other's prompts;
- every Hop costs, and changing to another Locality costs a long way. Prompts go there slowly, in
  the way of everything behind them, so that throughput falls with it too.

What Workers can compute in all (`flow.most_flow`) counts too, more for large models; where memory
is not known there is nothing else. All constants are fitted to the event simulation of requests in
`bench/placement`, to rank placements as it does; the figures themselves mean little.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from meshnet_common.ids import WorkerId
from meshnet_common.shard_range import ShardRange
from meshnet_tracker.planning.capacity import LayerSizes
from meshnet_tracker.planning.coverage import count_layers, gaps_of
from meshnet_tracker.planning.flow import layer_flows, most_flow
from meshnet_tracker.planning.orders import Candidate, capacity

Run = tuple[Candidate, ShardRange]

SMALL_STEP = 0.5
"""A step for one token takes such a part of a full one: weights are read once for all of them."""
MOST_SMALL_STEP_TOKENS = 50.0
FULL_STEP_TOKENS = 40.0
"""Tokens of prompts and answers for each of which a saturated Worker takes a small step's time."""
ALONE = 4.0
"""How much longer, in its own time there, a token waits at a Worker that has the Layer alone."""
ALONE_STRETCHES = 3
"""Of so many stretches more than the first, waiting is half of what it is in a long row."""
HOP_SECONDS = 0.006
FAR_SECONDS = 0.1
"""One way to another Locality, until it is measured."""
TYPICAL_TOKENS = 1000
"""Prompt and answer of a request: for so many KV Blocks are kept."""
TYPICAL_ANSWER_TOKENS = 250
SAFE_REPLICAS = 2
SAFE = 1.01
"""What a second Worker for every Layer is worth, in throughput."""
CROWDED = 0.7
"""Twice the Sessions are worth two to the power of this: they queue longer, too."""
FEW_SESSIONS = 100.0
MOST_FLOW_WEIGHT = 0.46
HALF_FLOW_WEIGHT_LAYERS = 40
"""With so many Layers the flow weighs half of the most."""
HALVINGS = 30
DIGITS = 9
"""Scores are compared to so many places, so that rounding never decides."""


@dataclass(frozen=True, slots=True, order=True)
class Score:
    """Larger is better."""

    covered_layers: int
    shortest_gap: int
    """Minus the longest gap."""
    worth: float
    """About tokens per second; and a little more where every Layer has a second Worker."""
    quickness: float
    """Minus the seconds that a token takes when there are no others."""
    replicas: int
    """Of the thinnest Layer."""
    behind: int = 0
    """How far back Workers begin, in sum: prompts spread where more Workers come later."""


@dataclass(frozen=True, slots=True)
class _Part:
    """What a Worker does for every token, on average."""

    layers: float
    """So many Layers of it are run here; and a token stays for so long while others are few."""
    seconds: float
    most_tokens: float
    """So many a second can be run here at most."""

    def loaded_seconds(self, tokens_per_second: float) -> float:
        return self.seconds / (1 - min(tokens_per_second / self.most_tokens, 1 - 1e-9))


def score(sizes: LayerSizes, runs: Iterable[Run], tokens_per_second: float | None = None) -> Score:
    """Judge a placement; the order of the runs changes nothing.

    Its tokens per second are estimated, unless it was tried out (`trial.py`).
    """
    placed = sorted(runs, key=lambda run: run[0].worker_id)
    layers = sizes.layer_count
    counts = count_layers((run for _, run in placed), layers)
    gaps = gaps_of(counts)
    if gaps:
        return Score(layers - sum(map(len, gaps)), -max(map(len, gaps)), 0.0, 0.0, 0)
    crossings = far_crossings(placed, layers)
    parts = _parts(sizes, placed)
    sessions = sessions_that_fit(sizes, placed)
    ways = FAR_SECONDS * crossings + HOP_SECONDS * hops(placed, layers)
    flow = most_flow(((run, worker.rate(len(run))) for worker, run in placed), layers)
    worth = flow
    if sessions is not None:
        tokens = tokens_per_second
        if tokens is None:
            crowd = FEW_SESSIONS * (sessions / FEW_SESSIONS) ** CROWDED
            tokens = _sustained(parts, crowd * TYPICAL_TOKENS / TYPICAL_ANSWER_TOKENS, ways)
        weight = MOST_FLOW_WEIGHT * layers**2 / (layers**2 + HALF_FLOW_WEIGHT_LAYERS**2)
        worth = tokens ** (1 - weight) * flow**weight
    safe = SAFE if min(counts) >= SAFE_REPLICAS else 1.0
    return Score(
        covered_layers=layers,
        shortest_gap=0,
        worth=round(worth * safe / (1 + crossings), DIGITS),
        quickness=-round(sum(part.seconds for part in parts) + ways, DIGITS),
        replicas=min(counts),
        behind=sum(run.start for _, run in placed),
    )


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
    return min(layer_flows(rooms, sizes.layer_count))


def sessions_alone(sizes: LayerSizes, worker: Candidate, layers: int) -> float:
    """Return how many Sessions fit beside so many Layers on one Worker, if it runs them all."""
    room = kv_room(worker, layers * sizes.bytes_per_layer)
    return room / (layers * _session_bytes(sizes))


def kv_room(worker: Candidate, weight_bytes: int) -> int:
    """Return what so many bytes of weights leave of a Worker's memory."""
    return max(0, worker.memory_bytes - weight_bytes)


def step_seconds(sizes: LayerSizes, worker: Candidate) -> float:
    """Return how long a small step takes at one Layer of a Worker.

    Measured rates are those of full steps, with as many Sessions as fit beside all Layers that it
    can hold; a plain speed is that of single tokens.
    """
    if not worker.layer_rates or not worker.memory_bytes or not sizes.kv_bytes_per_layer:
        return 1 / worker.rate(1)
    most = max(1, min(capacity(sizes, worker), len(worker.layer_rates)))
    tokens = SMALL_STEP * sessions_alone(sizes, worker, most)
    return max(1.0, min(MOST_SMALL_STEP_TOKENS, tokens)) / worker.layer_rates[0]


def hops(runs: Sequence[Run], layer_count: int) -> float:
    """Count the Workers that a token goes through, on average."""
    speeds = _speeds(runs, layer_count)
    return sum(
        worker.rate(1) / len(run) ** 2 * sum(1 / speeds[layer] for layer in run.layers)
        for worker, run in runs
    )


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


def _parts(sizes: LayerSizes, runs: Sequence[Run]) -> list[_Part]:
    speeds = _speeds(runs, sizes.layer_count)
    more = len({edge for _, run in runs for edge in (run.start, run.end)}) - 2
    alone = ALONE * more / (more + 1 + ALONE_STRETCHES)
    parts = []
    for worker, run in runs:
        speed = worker.rate(1) / len(run)
        shares = [speed / speeds[layer] for layer in run.layers]
        step, layers = step_seconds(sizes, worker), sum(shares)
        waits = layers + alone * sum(share**4 for share in shares)
        parts.append(_Part(layers, waits * step, FULL_STEP_TOKENS / (step * layers)))
    return parts


def _sustained(parts: Sequence[_Part], tokens_in_flight: float, way_seconds: float) -> float:
    """Return the tokens per second for which just so many are in flight; by halving what may be."""
    low, high = 0.0, min(part.most_tokens for part in parts)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        seconds = way_seconds + sum(part.loaded_seconds(middle) for part in parts)
        if tokens_in_flight > middle * seconds:
            low = middle
        else:
            high = middle
    return low


def _speeds(runs: Iterable[Run], layer_count: int) -> list[float]:
    """Add up how fast each Layer runs."""
    speeds = [0.0] * layer_count
    for worker, run in runs:
        speed = worker.rate(1) / len(run)
        for layer in run.layers:
            speeds[layer] += speed
    return speeds


def _session_bytes(sizes: LayerSizes) -> int:
    return sizes.kv_bytes_per_layer * TYPICAL_TOKENS
