import pytest
import torch

from meshnet_common.protocol.sampling import Sampling
from meshnet_worker.engine.device import CPU_BLOCK_POSITIONS
from meshnet_worker.engine.runner import BatchRunner
from meshnet_worker.engine.shard import Shard
from meshnet_worker.engine_port import (
    ArmSession,
    CloseSession,
    Event,
    ExtendSession,
    OpenSession,
    RunSegment,
    SessionFailed,
    SizePool,
    Stepped,
    StepResult,
    TruncateSession,
)
from tests.worker.conftest import ModelFolders
from tests.worker.engine.splitting import CPU, loaded
from tests.worker.models import HIDDEN_SIZE, LAYERS, WORDS, greedy_answer, prompt_of

ROW_BYTES = 4 * HIDDEN_SIZE
POOL_BLOCKS = 20
GREEDY = Sampling(temperature=0.0, top_p=1.0, seed=1)


class Runner:
    """A runner over one whole Llama, with everything that it said."""

    def __init__(self, shard: Shard) -> None:
        self.events: list[tuple[Event, bytes]] = []
        self.runner = BatchRunner({0: shard}, CPU, lambda *event: self.events.append(event))
        self.runner.size_pool(SizePool(0, POOL_BLOCKS))

    def open(self, session: int, start: int = 0, end: int = LAYERS, positions: int = 300) -> None:
        self.runner.change(OpenSession(session, 0, start, end, positions))
        self.runner.change(ArmSession(session, (3, 0), GREEDY))

    def add(
        self,
        session: int,
        ids: list[int] | None,
        start: int = 0,
        hidden: bytes = b"",
        *,
        draws: bool = False,
    ) -> None:
        tokens = len(ids) if ids is not None else len(hidden) // ROW_BYTES
        token_ids = tuple(ids) if ids is not None else None
        command = RunSegment(
            session, (3, 1), start, tokens, flags=2, token_ids=token_ids, draws=draws
        )
        self.runner.add(command, hidden)

    def step(self) -> tuple[list[StepResult], bytes]:
        """Run until nothing waits; all results and hidden states."""
        self.events.clear()
        while self.runner.has_work:
            self.runner.step()
        steps = [(event, payload) for event, payload in self.events if isinstance(event, Stepped)]
        results = [result for event, _ in steps for result in event.results]
        return results, b"".join(payload for _, payload in steps)

    def tokens(self) -> dict[int, int | None]:
        return {result.session: result.token_id for result in self.step()[0]}

    @property
    def failures(self) -> dict[int, str]:
        return {e.session: e.reason for e, _ in self.events if isinstance(e, SessionFailed)}


@pytest.fixture(scope="module")
def llama(model_folders: ModelFolders) -> Shard:
    return loaded(model_folders("llama"))


@pytest.fixture
def runner(llama: Shard) -> Runner:
    return Runner(llama)


def test_a_whole_model_answers_as_transformers_does(runner: Runner) -> None:
    runner.open(1)
    prompt = prompt_of(130)
    runner.add(1, prompt[:128])
    runner.add(1, prompt[128:], start=128, draws=True)
    answer = [runner.tokens()[1]]
    while len(answer) < 4:
        runner.add(1, [answer[-1] or 0], start=129 + len(answer), draws=True)
        answer.append(runner.tokens()[1])
    assert answer == greedy_answer("llama", 130, 4)


def test_a_result_names_its_segment(runner: Runner) -> None:
    runner.open(1)
    runner.add(1, [5, 6, 7])
    (result,), payload = runner.step()
    assert result == StepResult(1, (3, 1), 0, 3, 2, 0, None)
    assert payload == b""


def test_hidden_states_go_through_two_ranges_of_layers(runner: Runner) -> None:
    prompt = prompt_of(20)
    runner.open(1, 0, 2)
    runner.add(1, prompt)
    (result,), hidden = runner.step()
    assert len(hidden) == result.hidden_bytes == 20 * ROW_BYTES
    runner.open(2, 2, LAYERS)
    runner.add(2, None, hidden=hidden, draws=True)
    assert runner.tokens() == {2: greedy_answer("llama", 20, 1)[0]}


def test_each_segment_of_a_batch_gets_its_own_rows(runner: Runner) -> None:
    alone = {}
    for session, tokens in ((1, 3), (2, 1), (3, 5)):
        runner.open(session, 0, 2)
        runner.add(session, prompt_of(tokens))
        alone[session] = runner.step()[1]
        runner.runner.change(CloseSession(session))
        runner.open(session, 0, 2)
    for session, tokens in ((1, 3), (2, 1), (3, 5)):
        runner.add(session, prompt_of(tokens))
    results, payload = runner.step()
    assert len(runner.events) == 1
    for result in results:
        own, payload = payload[: result.hidden_bytes], payload[result.hidden_bytes :]
        ours, theirs = (
            torch.frombuffer(bytearray(b), dtype=torch.float32)
            for b in (own, alone[result.session])
        )
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)


def test_only_segments_that_want_a_token_get_one(runner: Runner) -> None:
    for session in (1, 2, 3):
        runner.open(session)
    runner.add(1, prompt_of(5))
    runner.add(2, prompt_of(9), draws=True)
    runner.add(3, prompt_of(7))
    assert runner.tokens() == {1: None, 2: greedy_answer("llama", 9, 1)[0], 3: None}


def test_a_step_says_what_it_cost(runner: Runner) -> None:
    runner.open(1)
    runner.add(1, prompt_of(50))
    runner.step()
    (stepped, _), *_ = runner.events
    assert isinstance(stepped, Stepped)
    assert 0 < stepped.wall_seconds < 60
    assert 0 <= stepped.cpu_seconds < 60


BAD_IDS = pytest.mark.parametrize("bad", [[WORDS], [-1], [1 << 62], [1 << 63]], ids=str)


@BAD_IDS
def test_a_token_that_the_model_lacks_fails_its_session_alone(
    bad: list[int], runner: Runner
) -> None:
    for session in (1, 2, 3):
        runner.open(session)
    for session, ids in ((1, [4]), (2, bad), (3, [5])):
        runner.add(session, ids, draws=True)
    assert sorted(runner.tokens()) == [1, 3]
    assert list(runner.failures) == [2]


def test_a_session_beyond_its_reservation_fails_alone(runner: Runner) -> None:
    runner.open(1)
    runner.open(2, positions=2)
    runner.add(1, prompt_of(3), draws=True)
    runner.add(2, prompt_of(3), draws=True)
    assert runner.tokens() == {1: greedy_answer("llama", 3, 1)[0]}
    assert "2 reserved" in runner.failures[2]


def test_hidden_states_of_a_wrong_size_fail_their_session_alone(runner: Runner) -> None:
    good = torch.ones(2, HIDDEN_SIZE).numpy().tobytes()
    for session in (1, 2):
        runner.open(session, 2, LAYERS)
    runner.add(1, None, hidden=good, draws=True)
    runner.runner.add(RunSegment(2, (3, 0), 0, 2, draws=True), good[:-4])
    assert sorted(runner.tokens()) == [1]
    assert list(runner.failures) == [2]


def test_a_failed_session_is_closed_with_all_that_waits(runner: Runner) -> None:
    runner.open(1)
    runner.add(1, [WORDS])
    runner.add(1, [1], start=1)
    assert runner.step()[0] == []
    assert list(runner.failures) == [1]
    runner.add(1, [1], start=1)
    assert not runner.runner.has_work


def test_a_session_of_a_shard_that_is_gone_fails_alone(runner: Runner) -> None:
    runner.runner.change(OpenSession(1, 9, 0, 2, 10))
    assert list(runner.failures) == [1]
    runner.add(1, [1])
    assert runner.step()[0] == []


def test_a_closed_session_is_forgotten_with_all_that_waits(runner: Runner) -> None:
    runner.open(1)
    runner.add(1, [4])
    runner.runner.change(CloseSession(1))
    assert not runner.runner.has_work
    runner.add(1, [5], start=1)
    assert not runner.runner.has_work


def test_closing_what_is_not_open_is_no_fault(runner: Runner) -> None:
    runner.runner.change(CloseSession(77))
    runner.runner.change(ExtendSession(77, 100))
    assert runner.events == []


def test_an_extended_session_goes_on_exactly(runner: Runner) -> None:
    prompt = prompt_of(40)
    runner.open(1, positions=20)
    runner.add(1, prompt[:20])
    runner.step()
    runner.runner.change(ExtendSession(1, 40))
    runner.add(1, prompt[20:], start=20, draws=True)
    assert runner.tokens() == {1: greedy_answer("llama", 40, 1)[0]}


def test_a_session_opened_anew_remembers_nothing(runner: Runner) -> None:
    runner.open(1)
    runner.add(1, prompt_of(30)[10:], draws=True)
    runner.step()
    runner.runner.change(CloseSession(1))
    runner.open(1)
    runner.add(1, prompt_of(6), draws=True)
    assert runner.tokens() == {1: greedy_answer("llama", 6, 1)[0]}


def test_a_session_that_finds_no_blocks_fails_and_holds_none(runner: Runner) -> None:
    runner.open(1, positions=POOL_BLOCKS * CPU_BLOCK_POSITIONS)
    runner.open(2, positions=1)
    assert [event for event, _ in runner.events] == [
        SessionFailed(2, "1 KV blocks are needed, 0 are free")
    ]
    runner.runner.change(CloseSession(1))
    runner.open(3, positions=POOL_BLOCKS * CPU_BLOCK_POSITIONS)
    assert len(runner.events) == 1


def test_a_rolled_back_session_forgets_what_waits_and_writes_lower(runner: Runner) -> None:
    runner.open(1)
    prompt = prompt_of(20)
    runner.add(1, prompt)
    runner.step()
    runner.add(1, [5], start=20)
    runner.runner.change(TruncateSession(1, 15))
    assert not runner.runner.has_work
    runner.add(1, prompt[15:], start=15, draws=True)
    assert runner.tokens() == {1: greedy_answer("llama", 20, 1)[0]}


def test_a_pool_that_is_resized_keeps_what_its_sessions_hold(runner: Runner) -> None:
    prompt = prompt_of(20)
    runner.open(1)
    runner.add(1, prompt[:12])
    runner.step()
    for blocks in (POOL_BLOCKS + 5, 6):
        runner.runner.size_pool(SizePool(0, blocks))
    runner.add(1, prompt[12:], start=12, draws=True)
    assert runner.tokens() == {1: greedy_answer("llama", 20, 1)[0]}


def test_sessions_at_the_head_are_kept_in_groups(runner: Runner) -> None:
    runner.runner.groups.count = 2
    for session in range(4):
        runner.open(session)
        runner.add(session, [1])
    runner.step()
    widths = [len(event.results) for event, _ in runner.events if isinstance(event, Stepped)]
    assert widths == [2, 2]


def test_a_later_hop_runs_together_what_came_together(runner: Runner) -> None:
    runner.runner.groups.count = 2
    for session in range(4):
        runner.open(session, start=1)
        runner.add(session, None, hidden=bytes(ROW_BYTES))
    runner.step()
    widths = [len(event.results) for event, _ in runner.events if isinstance(event, Stepped)]
    assert widths == [4]
