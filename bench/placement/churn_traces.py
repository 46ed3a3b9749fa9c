"""Random churn: Workers that join, leave and fail while a Mesh serves several models.

A trace is plain values, the same for the same seed. The Mesh begins with what covers its models
between one and three times; then Workers come and go, and capacity wanders around that.
"""

from dataclasses import dataclass
from random import Random

GB = 1_000_000_000
LAYER_BYTES = GB // 2
TRACE_SECONDS = 7200.0
HEARTBEAT_SECONDS = 4.0
LOST_AFTER_SECONDS = 12.0
MEGABYTES_PER_SECOND = (20, 40, 60, 100, 125)
CAPACITIES = (4, 6, 8, 12, 16, 24)
SPEEDS = (200.0, 450.0, 900.0, 2000.0)


@dataclass(frozen=True, slots=True)
class Model:
    """Layers of `LAYER_BYTES`, and how much it is asked for."""

    name: str
    layers: int
    weight: float


@dataclass(frozen=True, slots=True)
class Machine:
    """What a Worker brings."""

    name: str
    capacity: int
    """In Layers."""
    speed: float
    bytes_per_second: float

    @property
    def layers_per_second(self) -> float:
        return self.bytes_per_second / LAYER_BYTES


@dataclass(frozen=True, slots=True)
class Join:
    """A Worker with empty hands comes."""

    at: float
    machine: Machine


@dataclass(frozen=True, slots=True)
class Leave:
    """A Worker says that it goes, and does so as soon as its Sessions are done."""

    at: float
    name: str


@dataclass(frozen=True, slots=True)
class Fail:
    """A Worker is gone without a word; its Heartbeats are missed after `unseen_seconds`."""

    at: float
    name: str
    unseen_seconds: float


Event = Join | Leave | Fail


@dataclass(frozen=True, slots=True)
class Trace:
    """What happens to one Mesh."""

    seed: int
    models: tuple[Model, ...]
    events: tuple[Event, ...]
    seconds: float = TRACE_SECONDS


def random_trace(seed: int, seconds: float = TRACE_SECONDS) -> Trace:
    """Draw a trace."""
    random = Random(seed)
    models = tuple(
        Model(f"m{index}", random.randint(8, 24), random.choice((1.0, 2.0, 4.0, 8.0)))
        for index in range(random.choice((1, 2, 2, 3)))
    )
    need = sum(model.layers for model in models)
    wanted = need * random.uniform(1.0, 3.0)
    pace = random.uniform(120.0, 600.0)
    events: list[Event] = []
    alive: list[Machine] = []
    joined = 0
    while sum(machine.capacity for machine in alive) < wanted:
        alive.append(_machine(random, joined))
        events.append(Join(0.0, alive[-1]))
        joined += 1
    now = 60.0
    while (now := now + random.expovariate(1 / pace)) < seconds:
        there = sum(machine.capacity for machine in alive)
        if not alive or random.random() < 0.5 * wanted / max(there, 1):
            alive.append(_machine(random, joined))
            events.append(Join(now, alive[-1]))
            joined += 1
            continue
        gone = alive.pop(random.randrange(len(alive)))
        if random.random() < 0.5:
            events.append(Leave(now, gone.name))
        else:
            unseen = LOST_AFTER_SECONDS - random.uniform(0.0, HEARTBEAT_SECONDS)
            events.append(Fail(now, gone.name, unseen))
    return Trace(seed, models, tuple(events), seconds)


def _machine(random: Random, index: int) -> Machine:
    return Machine(
        name=f"w{index:03}",
        capacity=random.choice(CAPACITIES),
        speed=random.choice(SPEEDS),
        bytes_per_second=random.choice(MEGABYTES_PER_SECOND) * 1e6,
    )
