"""An event simulation of requests on one placement: the yardstick of `bench.placement`.

**Load.** Offline: more requests wait than fit, always. A request has a prompt and an output, each
uniform between a quarter and seven quarters of its mean. It enters as soon as the real router finds
it a Route of Workers with room for the KV of prompt and output together; no request is preempted.
The Mesh starts full, every request somewhere in its output, so that little warm-up is needed.

**A hop.** A Worker runs steps, one after the other. A step takes, first come first served, what is
waiting when it begins: at most `prompts_at_once` prompts and `MOST_SEQUENCES` tokens of decoding
sequences. It lasts, summed over the Layers that any of them needs there, the device's published
seconds for that many prompt tokens and that many sequences; so a larger batch is slower and gives
more. Then each goes on to the next Worker of its Route: one way of latency, and its activations at
the link's bandwidth, first come first served between the same two Workers (harder than the Mesh's
own transport, where Sessions take turns). After the last Layer it goes to whoever asked and from
there to the first Worker again.

**KV room** is what weights leave of the Worker's memory. A request takes, on each Worker of its
Route, the bytes of the Layers that this Worker runs for it, for prompt and output.

**The router** hears of sessions, queue and free KV by Heartbeats every four seconds and of its own
Routes at once, like a Tracker. Workers without room are excluded, as after their refusal.

Left out: sampling and the client's own line, KV reads that grow with the context, chunks of
prompts, several links sharing one card. `tokens_per_second` counts decoded tokens only,
`latency_seconds` is the mean time from one token of a sequence to its next.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from itertools import count
from random import Random
from typing import Any

from bench.placement.instances import Instance, Placement, view
from bench.placement.router import HEARTBEAT_SECONDS, Router
from bench.placement.site import Request, Site, Stop, step_seconds
from meshnet_common.ids import WorkerId
from meshnet_tracker.planning.snapshot import WorkerView

WARM_UP_SECONDS = 40.0
TOKENS = 30_000
"""Measure until so many are decoded: then seeds differ by a few percent."""
SLICE_SECONDS = 20.0
LEAST_SLICES, MOST_SLICES = 3, 25


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a placement gave; zero tokens if there is no Route at all."""

    tokens_per_second: float
    latency_seconds: float
    requests_in_flight: float = 0.0
    hops: float = 0.0


def simulate(
    instance: Instance,
    placement: Placement,
    seed: int = 1,
    seconds: float | None = None,
    warm_up_seconds: float = WARM_UP_SECONDS,
) -> Outcome:
    """Run requests on this placement; the same arguments give the same outcome.

    So many seconds are measured, or, if none are given, as many as `TOKENS` tokens take.
    """
    run = _Run(instance, placement, seed)
    run.fill()
    run.until(warm_up_seconds)
    run.measure()
    if seconds is not None:
        run.until(warm_up_seconds + seconds)
    for done in range(MOST_SLICES if seconds is None else 0):
        if done >= LEAST_SLICES and run.latencies >= TOKENS:
            break
        run.until(run.now + SLICE_SECONDS)
    if not run.latencies:
        return Outcome(0.0, float("inf"))
    return Outcome(
        run.latencies / (run.now - warm_up_seconds),
        run.latency_seconds / run.latencies,
        sum(site.sessions for site in run.sites.values()) / max(run.mean_hops(), 1),
        run.mean_hops(),
    )


class _Run:
    def __init__(self, instance: Instance, placement: Placement, seed: int) -> None:
        self.instance = instance
        self.random = Random(seed)
        self.now = 0.0
        self.sites = {
            node.worker_id: Site(instance, node, placement[node.worker_id])
            for node in instance.nodes
            if node.worker_id in placement
        }
        self.idle_views = {
            worker_id: view(instance, site.node, placement)
            for worker_id, site in self.sites.items()
        }
        self.router = Router(instance.key, instance.layers, self._views())
        self.events: list[tuple[float, int, Any]] = []
        self.order = count()
        self.line_free: dict[tuple[WorkerId, WorkerId], float] = {}
        self.entered = 0
        self.hops = 0
        self.waiting = self._next_request()
        self.latencies = 0
        self.latency_seconds = 0.0

    def fill(self) -> None:
        """Let in all that fit, each somewhere in its output."""
        while (request := self._enter()) is not None:
            request.decoded = self.random.randrange(request.output)
            self._at(self.random.random() * 2, self._from_client, [request])
        self._at(HEARTBEAT_SECONDS, self._heartbeat, [])

    def measure(self) -> None:
        self.latencies = 0
        self.latency_seconds = 0.0

    def mean_hops(self) -> float:
        return self.hops / max(self.entered, 1)

    def until(self, end: float) -> None:
        while self.events and self.events[0][0] <= end:
            self.now, _, (act, requests) = heappop(self.events)
            act(requests)
        self.now = end

    def _at(self, moment: float, act: Any, requests: list[Request]) -> None:
        heappush(self.events, (moment, next(self.order), (act, requests)))

    def _next_request(self) -> Request:
        return Request(
            self._length(self.instance.mean_prompt_tokens),
            self._length(self.instance.mean_output_tokens),
        )

    def _length(self, mean: int) -> int:
        return self.random.randint(round(mean / 4), round(mean * 7 / 4))

    def _enter(self) -> Request | None:
        """Give the next request a Route; None if nobody has room for it."""
        request = self.waiting
        token_bytes = self.instance.kv_bytes_per_token_per_layer * (request.prompt + request.output)
        full = frozenset(
            worker_id
            for worker_id, site in self.sites.items()
            if site.room < token_bytes * len(site.run)
        )
        hops = self.router.route(f"s{self.entered}", token_bytes, full, self.now)
        if hops is None:
            return None
        for hop in hops:
            request.hops.append(Stop(self.sites[WorkerId(hop.worker_id)], hop.start, hop.end))
        for stop in request.hops:
            stop.site.room -= token_bytes * (stop.end - stop.start)
            stop.site.sessions += 1
        self.entered += 1
        self.hops += len(hops)
        self.waiting = self._next_request()
        return request

    def _leave(self, request: Request) -> None:
        token_bytes = self.instance.kv_bytes_per_token_per_layer * (request.prompt + request.output)
        for stop in request.hops:
            stop.site.room += token_bytes * (stop.end - stop.start)
            stop.site.sessions -= 1

    def _heartbeat(self, _: list[Request]) -> None:
        self.router.hear(self._views())
        self._at(self.now + HEARTBEAT_SECONDS, self._heartbeat, [])

    def _views(self) -> Iterable[WorkerView]:
        for worker_id, site in self.sites.items():
            yield replace(
                self.idle_views[worker_id],
                sessions=site.sessions,
                queued=len(site.prompts) + len(site.decodes),
                kv_bytes_free=site.room,
            )

    def _from_client(self, requests: list[Request]) -> None:
        for request in requests:
            request.at = 0
            request.since = self.now
            self._at(self.now + self.instance.client_seconds, self._arrive, [request])

    def _arrive(self, requests: list[Request]) -> None:
        site = requests[0].hops[requests[0].at].site
        for request in requests:
            (site.prompts if request.decoded < 0 else site.decodes).append(request)
        if not site.busy:
            self._step(site)

    def _step(self, site: Site) -> None:
        batch = site.next_batch()
        site.busy = bool(batch)
        if batch:
            self._at(self.now + step_seconds(site.node.device, batch), self._done, batch)

    def _done(self, batch: list[Request]) -> None:
        site = batch[0].hops[batch[0].at].site
        groups: dict[Site | None, list[Request]] = {}
        for request in batch:
            request.at += 1
            following = request.hops[request.at].site if request.at < len(request.hops) else None
            groups.setdefault(following, []).append(request)
        for following, requests in groups.items():
            if following is None:
                self._at(self.now + self.instance.client_seconds, self._to_client, requests)
            else:
                self._send(site, following, requests)
        self._step(site)

    def _send(self, sender: Site, receiver: Site, requests: Sequence[Request]) -> None:
        link = self.instance.link(sender.node, receiver.node)
        line = (sender.node.worker_id, receiver.node.worker_id)
        token_seconds = self.instance.hop_bytes_per_token / link.bytes_per_second
        free = max(self.line_free.get(line, 0.0), self.now)
        tokens = [request for request in requests if request.decoded >= 0]
        if tokens:
            free += len(tokens) * token_seconds
            self._at(free + link.seconds, self._arrive, tokens)
        for request in requests:
            if request.decoded < 0:
                free += request.prompt * token_seconds
                self._at(free + link.seconds, self._arrive, [request])
        self.line_free[line] = free

    def _to_client(self, requests: list[Request]) -> None:
        going_on = []
        for request in requests:
            if request.decoded >= 0:
                self.latencies += 1
                self.latency_seconds += self.now - request.since
            request.decoded += 1
            if request.decoded < request.output:
                going_on.append(request)
            else:
                self._leave(request)
                self._admit()
        self._from_client(going_on)

    def _admit(self) -> None:
        while (request := self._enter()) is not None:
            self._from_client([request])
