"""Any mix of answers on three Workers with tiny pools: no deadlock, no livelock, nothing leaks.

Routes form a ring, so that each Worker is head, middle and tail of somebody, and openings hold KV
on one Hop while they ask for it on the next.
"""

from collections.abc import Callable
from random import Random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from meshnet_worker import generation, refill
from tests.worker.kv_answers import ROUTES
from tests.worker.kv_mesh import SimMesh
from tests.worker.kv_worker import CAPACITY, POOL_BLOCKS

MOST_ANSWERS = 8
LONGEST_ANSWER = CAPACITY + 5
MOST_LENT = 4
"""Blocks that a pool may have beyond its first ones."""
MOST_EVENTS = 100_000
"""Far more than eight answers need, however often they displace each other."""

RANDOMS = st.integers(0, 2**32).map(Random)


@pytest.fixture(autouse=True)
def short_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Sessions grow block by block, as long answers do."""
    monkeypatch.setattr(generation, "RESERVE_POSITIONS", 4)
    monkeypatch.setattr(generation, "RESERVE_AHEAD", 2)
    monkeypatch.setattr(refill, "WORTH_A_FILL", 0)


def let_all_happen(
    mesh: SimMesh, random: Random, after_event: Callable[[int], None] = lambda _number: None
) -> None:
    """Let everything happen that can, to its end."""
    events = 0
    while mesh.happen(random):
        events += 1
        assert events < MOST_EVENTS, "it goes round and round"
        after_event(events)


def all_came_whole(mesh: SimMesh) -> bool:
    """Whether every answer is what was expected, and all KV is free again."""
    are_whole = all(a.generation.chosen == a.expected for a in mesh.answers.values())
    return are_whole and all(w.kv.free_bytes == w.free_at_first for w in mesh.workers.values())


class KvMeshMachine(RuleBasedStateMachine):
    """Answers come, are cancelled and break while messages, steps and retries interleave."""

    def __init__(self) -> None:
        super().__init__()
        self.mesh = SimMesh()

    @rule(
        route=st.integers(0, len(ROUTES) - 1),
        prompt_tokens=st.integers(1, CAPACITY),
        new_tokens=st.integers(1, LONGEST_ANSWER),
    )
    def start(self, route: int, prompt_tokens: int, new_tokens: int) -> None:
        if len(self.mesh.answers) < MOST_ANSWERS:
            self.mesh.start(route, prompt_tokens, new_tokens)

    @rule(random=RANDOMS, events=st.integers(1, 80))
    def go_on(self, random: Random, events: int) -> None:
        for _ in range(events):
            self.mesh.happen(random)

    @rule(number=st.integers(1, MOST_ANSWERS))
    def cancel(self, number: int) -> None:
        answer = self.mesh.answers.get(f"s{number}")
        if answer is not None and not answer.is_over:
            self.mesh.cancel(answer)

    @rule(number=st.integers(1, MOST_ANSWERS), worker=st.sampled_from(sorted(POOL_BLOCKS)))
    def break_on(self, number: int, worker: str) -> None:
        self.mesh.break_on(self.mesh.workers[worker], f"s{number}")

    @rule(worker=st.sampled_from(sorted(POOL_BLOCKS)), more_blocks=st.integers(0, MOST_LENT))
    def resize(self, worker: str, more_blocks: int) -> None:
        self.mesh.workers[worker].lend(more_blocks)

    @invariant()
    def nobody_holds_more_than_there_is(self) -> None:
        for worker in self.mesh.workers.values():
            (pool,) = worker.kv.pools.values()
            assert pool.blocks == max(worker.lent, pool.most_used)

    @invariant()
    def who_waits_holds_nothing_that_is_not_being_closed(self) -> None:
        closings = sum(len(queue) for queue in self.mesh.wires.values())
        for answer in self.mesh.answers.values():
            if answer.phase == "waiting" and not closings:
                assert not self.mesh.is_held(answer)

    def teardown(self) -> None:
        let_all_happen(self.mesh, Random(0))
        for answer in self.mesh.answers.values():
            assert answer.is_over, "somebody waits for ever"
            if not answer.is_cancelled and answer.fault is None:
                # Pools that have grown let an answer become longer than the first ones would.
                chosen, certain = answer.generation.chosen, answer.expected
                assert chosen[: len(certain)] == certain
                assert chosen == list(range(certain[0], certain[0] + len(chosen)))
            assert answer.fault is None
        for worker in self.mesh.workers.values():
            assert len(worker.sessions) == len(worker.waiting) == len(worker.computed) == 0
            worker.lend(0)
            assert worker.kv.free_bytes == worker.free_at_first


KvMeshMachine.TestCase.settings = settings(max_examples=200, stateful_step_count=25, deadline=None)
TestKvMesh = KvMeshMachine.TestCase


@pytest.mark.parametrize("seed", range(5))
def test_more_answers_than_fit_all_finish_and_some_gave_way(seed: int) -> None:
    mesh, random = SimMesh(), Random(seed)
    for number in range(30):
        mesh.start(number % len(ROUTES), 3 + number % 9, 4 + number % 15)
    let_all_happen(mesh, random)
    assert all_came_whole(mesh)
    assert mesh.preempted > 0


@pytest.mark.parametrize("seed", range(5))
def test_answers_that_break_on_any_hop_go_on_with_what_the_others_hold(seed: int) -> None:
    mesh, random = SimMesh(), Random(seed)
    for number in range(12):
        mesh.start(number % len(ROUTES), 3 + number % 9, 4 + number % 15)

    def break_some(events: int) -> None:
        if events % 40 == 0 and events < 2000:
            broken = f"s{random.randint(1, 12)}"
            mesh.break_on(random.choice(list(mesh.workers.values())), broken)

    let_all_happen(mesh, random, break_some)
    assert all_came_whole(mesh)
    assert mesh.kept_when_mended > 0
