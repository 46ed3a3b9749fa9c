import pytest

from meshnet_common.errors import MeshnetError
from meshnet_common.protocol.bodies import ErrorBody
from meshnet_worker.answers.failing import before_commit, in_the_middle
from meshnet_worker.engine_port import GRAMMAR_FAILED
from meshnet_worker.head_session import (
    BlamedError,
    HopFailedError,
    NoRoomError,
    RouteLostError,
    RouteSilentError,
)
from tests.worker.answers.scripts import Script

LOST = HopFailedError(ErrorBody(session_id="s1", code="peer_lost", message="M.", worker_id="w1"))

BLAMED = BlamedError(ErrorBody(session_id="s1", code="engine_lost", message="M.", worker_id="w1"))

UNFIT = HopFailedError(
    ErrorBody(session_id="s1", code=GRAMMAR_FAILED, message="Too many.", worker_id="w1")
)


@pytest.mark.parametrize(
    ("error", "before", "after"),
    [
        (LOST, (502, "upstream_failed"), (502, "worker_lost")),
        (BLAMED, (502, "upstream_failed"), (502, "worker_lost")),
        (RouteSilentError("Long."), (502, "upstream_failed"), (502, "worker_lost")),
        (RouteLostError("Of layers 2-3."), (503, "model_unavailable"), (502, "worker_lost")),
        (UNFIT, (400, "unsupported_value"), (400, "unsupported_value")),
        (NoRoomError("Full."), (503, "overloaded"), (503, "overloaded")),
    ],
)
def test_each_fault_has_its_error_before_and_after_the_first_token(
    error: MeshnetError, before: tuple[int, str], after: tuple[int, str]
) -> None:
    answer = Script([1, 2]).answer()
    first = before_commit(error, answer)
    assert (first.status, first.body.code) == before
    assert ("Retry-After" in first.headers) == (first.status == 503)
    assert in_the_middle(error, answer).body == first.body
    answer.choices[0].take(1)
    later = in_the_middle(error, answer)
    assert (later.status, later.body.code) == after
    assert str(error) in later.body.message or error is UNFIT


def test_clients_must_not_ask_again_for_what_fails_wherever_it_runs() -> None:
    for error, headers in ((BLAMED, {"x-should-retry": "false"}), (LOST, {})):
        assert before_commit(error, Script([1]).answer()).headers == headers


@pytest.mark.parametrize(
    ("api", "field"), [("chat", "response_format"), ("responses", "text.format")]
)
def test_what_no_mask_can_keep_is_the_clients_to_change_and_no_workers_fault(
    api: str, field: str
) -> None:
    body = before_commit(UNFIT, Script([1], api=api).answer()).body
    assert body.param == field
    assert body.message == f"`{field}` cannot be followed: Too many."
