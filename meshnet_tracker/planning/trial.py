"""A placement tried out: which Routes its Sessions would take, and how long a token then takes.

`score.py` takes all Sessions for average ones. Here they are let in a portion at a time until
nobody has room, each by the Route that the router would choose: by how many are at a Worker
already, and around those that are nearly full. What a Worker needs for them is known from what it
has measured itself, a single token and a prompt:

- a step reads the weights of its Layers, however many take part, which is all that a single token
  costs; and it reads the KV Blocks of each Session;
- each token computes as much as one of a prompt, and prompts are so many times as long as answers.

A token then finds at each Worker something between the Sessions that are there on average, and all
that ever come by: they pile up behind a prompt and move on together. The fewer Sessions there are,
the rarer are prompts, and the more of them are held up by each.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from meshnet_common.ids import WorkerId
from meshnet_common.shard_range import ShardRange
from meshnet_tracker.planning.capacity import LayerSizes
from meshnet_tracker.planning.orders import Candidate
from meshnet_tracker.planning.score import (
    FAR_SECONDS,
    TYPICAL_ANSWER_TOKENS,
    TYPICAL_TOKENS,
    Run,
    Score,
    kv_room,
    score,
    sessions_that_fit,
)

HOP_SECONDS = 0.002
"""One way inside a Locality; in the score, which knows less, it stands for more than that."""
PORTIONS = 32
"""So many portions of Sessions fit where memory is tightest, if everybody runs all its Layers."""
MOST_PORTIONS = 128
FULL_SECONDS = 1e3
"""What a Layer costs where there is room for one portion only: others are preferred."""
OWN_STEPS = 1.25
"""A token waits for its own step, and now and then for one that runs already."""
ROUNDS = 12


class _Turn(NamedTuple):
    """The Layers that one Worker, by its number, runs of a Route."""

    place: int
    start: int
    end: int


_Way = tuple[_Turn, ...]
_Reached = tuple[float, tuple[tuple[int, int], ...]]
"""The seconds of a Route up to a Layer, and its Workers so far with the Layers they begin at."""


@dataclass(slots=True)
class _Place:
    """A Worker and the Sessions on it; `room` is for so many, each on one Layer."""

    run: ShardRange
    locality: str
    step_seconds: float
    """What a step takes for one Layer, be it for one token."""
    token_seconds: float
    """What a token adds to it, with its share of a prompt."""
    session_seconds: float
    """What each Session makes a Layer dearer, as the router sees it."""
    room: float
    sessions: float = 0.0

    def layer_seconds(self, portion: float) -> float | None:
        """Return what one more Session would pay for a Layer; None: a portion has no room."""
        if self.room < portion * len(self.run):
            return None
        is_nearly_full = self.room < 2 * portion * len(self.run)
        return (1 + self.sessions) * self.session_seconds + FULL_SECONDS * is_nearly_full


def may_be_tried(sizes: LayerSizes, pool: Iterable[Candidate]) -> bool:
    """Whether it is known how fast all Workers are, and what they have room for."""
    known = all(worker.prefill_speed > 0 and worker.memory_bytes for worker in pool)
    return known and sizes.kv_bytes_per_layer > 0


def tried(
    sizes: LayerSizes, workers: Mapping[WorkerId, Candidate], placed: Mapping[WorkerId, ShardRange]
) -> Score:
    """Judge a placement by trying it out."""
    runs = [(workers[worker_id], run) for worker_id, run in sorted(placed.items())]
    return score(sizes, runs, tokens_per_second(sizes, runs))


def tokens_per_second(sizes: LayerSizes, runs: Sequence[Run]) -> float:
    """Let in all Sessions that fit, and see what they get."""
    places = [_place(sizes, worker, run) for worker, run in runs]
    fitting = sessions_that_fit(sizes, runs)
    if not fitting:
        return 0.0
    return _turnover(places, _let_in(places, sizes.layer_count, fitting / PORTIONS))


def _place(sizes: LayerSizes, worker: Candidate, run: ShardRange) -> _Place:
    read_seconds, computed_seconds = 1 / worker.speed, 1 / worker.prefill_speed
    session_bytes = sizes.kv_bytes_per_layer * TYPICAL_TOKENS
    kv_seconds = read_seconds * session_bytes / sizes.bytes_per_layer
    # A step takes in one prompt, so that there are more steps the more prompts there are.
    prompt_seconds = read_seconds / TYPICAL_ANSWER_TOKENS
    return _Place(
        run=run,
        locality=worker.locality,
        step_seconds=read_seconds,
        token_seconds=computed_seconds * TYPICAL_TOKENS / TYPICAL_ANSWER_TOKENS
        + kv_seconds
        + prompt_seconds,
        session_seconds=1 / worker.rate(len(run)),
        room=kv_room(worker, sizes.range_bytes(run)) / session_bytes,
    )


def _let_in(places: Sequence[_Place], layers: int, portion: float) -> dict[_Way, float]:
    """Return the Routes that Sessions take until nobody has room, and how many take each."""
    edges = sorted(
        {0, layers, *(edge for each in places for edge in (each.run.start, each.run.end))}
    )
    stretches = [
        (start, end, [n for n, each in enumerate(places) if each.run.start <= start < each.run.end])
        for start, end in pairwise(edge for edge in edges if edge <= layers)
    ]
    inside: dict[_Way, float] = defaultdict(float)
    for _ in range(MOST_PORTIONS):
        way = _cheapest(places, stretches, portion)
        if not way:
            break
        inside[way] += portion
        for turn in way:
            places[turn.place].sessions += portion
            places[turn.place].room -= portion * (turn.end - turn.start)
    return inside


def _cheapest(
    places: Sequence[_Place], stretches: Sequence[tuple[int, int, list[int]]], portion: float
) -> _Way:
    """Choose the Route of one more portion of Sessions; empty if there is none."""
    costs = [place.layer_seconds(portion) for place in places]
    reached: dict[int, _Reached] = {n: (0.0, ((n, 0),)) for n in stretches[0][2]}
    for start, end, holders in stretches:
        handing_on = _handing_on(places, reached)
        here: dict[int, _Reached] = {}
        for n in holders:
            cost = costs[n]
            if cost is None:
                continue
            best = _best_way_to(n, places[n].locality, start, reached.get(n), handing_on)
            if best is not None:
                here[n] = (best[0] + cost * (end - start), best[1])
        reached = here
    told = [
        (seconds + _way_seconds(places[n].locality, places[turns[0][0]].locality), turns)
        for n, (seconds, turns) in reached.items()
    ]
    if not told:
        return ()
    _, turns = min(told)
    ends = [*(start for _, start in turns[1:]), stretches[-1][1]]
    return tuple(_Turn(n, start, end) for (n, start), end in zip(turns, ends, strict=True))


def _handing_on(
    places: Sequence[_Place], reached: Mapping[int, _Reached]
) -> list[tuple[str, _Reached]]:
    """Give the cheapest of each Locality, from whom others may take over; cheapest first."""
    cheapest: dict[str, _Reached] = {}
    for n, way in reached.items():
        locality = places[n].locality
        cheapest[locality] = min(cheapest.get(locality, way), way)
    return sorted(cheapest.items(), key=lambda each: each[1])


def _best_way_to(
    n: int,
    locality: str,
    start: int,
    own: _Reached | None,
    handing_on: Sequence[tuple[str, _Reached]],
) -> _Reached | None:
    """Let it go on, or take over from whom that is cheapest; nobody has two turns."""
    best = own
    for other, (seconds, turns) in handing_on:
        if best is not None and best[0] <= seconds + HOP_SECONDS:
            break
        if all(n != place for place, _ in turns):
            way = (seconds + _way_seconds(other, locality), (*turns, (n, start)))
            best = way if best is None else min(best, way)
    return best


def _way_seconds(one: str, other: str) -> float:
    return HOP_SECONDS if one == other else FAR_SECONDS


def _turnover(places: Sequence[_Place], inside: Mapping[_Way, float]) -> float:
    """Return the tokens per second of so many Sessions on each Route, by trying again and again."""
    ways = [(each, sessions, _travel_seconds(places, each)) for each, sessions in inside.items()]
    visits = [_Visits() for _ in places]
    for way, sessions, _ in ways:
        for turn in way:
            visits[turn.place].add(turn, sessions, places[turn.place].token_seconds)
    of_all = sum(inside.values())
    waits = [visit.wait_seconds(place, of_all) for visit, place in zip(visits, places, strict=True)]
    tokens = 0.0
    for _ in range(ROUNDS):
        waiting = [0.0] * len(places)
        tokens = 0.0
        for way, sessions, travel in ways:
            passed = sessions / (travel + sum(waits[turn.place] for turn in way))
            tokens += passed
            for turn in way:
                work = (turn.end - turn.start) * places[turn.place].token_seconds
                waiting[turn.place] += passed * waits[turn.place] * work
        waits = [
            visit.wait_seconds(place, of_all, work)
            for visit, place, work in zip(visits, places, waiting, strict=True)
        ]
    return tokens


def _travel_seconds(places: Sequence[_Place], way: _Way) -> float:
    """Add up the ways from Hop to Hop and back to the first."""
    return sum(
        _way_seconds(places[here.place].locality, places[there.place].locality)
        for here, there in zip(way, (*way[1:], way[0]), strict=True)
    )


@dataclass(slots=True)
class _Visits:
    """All Sessions that come by at a Worker."""

    sessions: float = 0.0
    work_seconds: float = 0.0
    """What one token of each takes."""
    layers: int = 0
    """What a step runs, if it is the longest that is asked for."""

    def add(self, turn: _Turn, sessions: float, token_seconds: float) -> None:
        layers = turn.end - turn.start
        self.sessions += sessions
        self.work_seconds += sessions * layers * token_seconds
        self.layers = max(self.layers, layers)

    def wait_seconds(
        self, place: _Place, of_all: float, usual_seconds: float | None = None
    ) -> float:
        """Return how long a token is here, among the work that is here on average; None: all.

        Of all that ever come by, more are here at once the fewer others there are anywhere.
        """
        step = OWN_STEPS * self.layers * place.step_seconds
        if usual_seconds is None:
            return step + self.work_seconds
        together = self.sessions / of_all / (1 + self.sessions / TYPICAL_ANSWER_TOKENS)
        return step + together * self.work_seconds + (1 - together) * usual_seconds
