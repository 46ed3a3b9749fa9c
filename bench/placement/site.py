"""A Worker in the simulator: its queue, its room for KV, and how long a step takes."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from bench.placement.instances import (
    MOST_PROMPT_TOKENS,
    MOST_SEQUENCES,
    Device,
    Instance,
    Node,
    kv_bytes,
)
from meshnet_common.shard_range import ShardRange


@dataclass(slots=True)
class Request:
    """One request, and where it is on its Route."""

    prompt: int
    output: int
    hops: list["Stop"] = field(default_factory=list)
    at: int = 0
    decoded: int = -1
    """Tokens so far; -1 while the prompt runs."""
    since: float = 0.0


@dataclass(frozen=True, slots=True)
class Stop:
    """A Worker runs these Layers of a request."""

    site: "Site"
    start: int
    end: int


class Site:
    """A Worker with its queue."""

    def __init__(self, instance: Instance, node: Node, run: ShardRange) -> None:
        self.node = node
        self.run = run
        self.room = kv_bytes(instance, node, run)
        self.sessions = 0
        self.busy = False
        self.prompts: deque[Request] = deque()
        self.decodes: deque[Request] = deque()

    def next_batch(self) -> list[Request]:
        """Take what the next step runs; empty if nothing waits."""
        batch: list[Request] = []
        tokens = 0
        while self.prompts and len(batch) < self.node.device.prompts_at_once:
            tokens += self.prompts[0].prompt
            if batch and tokens > MOST_PROMPT_TOKENS:
                break
            batch.append(self.prompts.popleft())
        if len(self.decodes) <= MOST_SEQUENCES:
            batch.extend(self.decodes)
            self.decodes.clear()
        else:
            batch.extend(self.decodes.popleft() for _ in range(MOST_SEQUENCES))
        return batch


def step_seconds(device: Device, batch: Sequence[Request]) -> float:
    """Add up what each Layer takes for those that need it."""
    parts: dict[tuple[int, int], list[int]] = {}
    for request in batch:
        stop = request.hops[request.at]
        part = parts.setdefault((stop.start, stop.end), [0, 0])
        if request.decoded < 0:
            part[0] += request.prompt
        else:
            part[1] += 1
    edges = sorted({edge for part in parts for edge in part})
    seconds = 0.0
    for start, end in pairwise(edges):
        prompt = sum(part[0] for (low, high), part in parts.items() if low <= start < high)
        tokens = sum(part[1] for (low, high), part in parts.items() if low <= start < high)
        seconds += (end - start) * (device.prompt_seconds[prompt] + device.decode_seconds[tokens])
    return seconds
