import pytest

from meshnet_common.ids import WorkerId
from meshnet_common.protocol.bodies import (
    ChosenToken,
    ErrorBody,
    OpenedBody,
    ProgressBody,
    TokensBody,
)
from meshnet_common.protocol.tickets import RouteTicket
from meshnet_worker.senders import (
    believed_tokens,
    may_close,
    may_have_passed_on,
    may_tell_head,
)
from tests.common.builders import hops, ticket
from tests.worker.builders import hop_session, three_hops

EPOCH = (1, 0)
OPENED = OpenedBody(session_id="s1", epoch=EPOCH, held=(0, 0, 0), credits=8)
PROGRESS = ProgressBody(session_id="s1", epoch=EPOCH, position=3)
FAULT = ErrorBody(session_id="s1", code="peer_lost", message="m", worker_id="w9")
EVERYBODY = ("w0", "w1", "w2", "w9")


def allowed(body: OpenedBody | ProgressBody | ErrorBody) -> list[str]:
    return [name for name in EVERYBODY if may_tell_head(three_hops(), WorkerId(name), body)]


def test_only_the_tail_says_that_a_session_is_open() -> None:
    assert allowed(OPENED) == ["w2"]


@pytest.mark.parametrize("body", [PROGRESS, FAULT])
def test_every_hop_of_the_route_tells_progress_and_faults(body: ProgressBody | ErrorBody) -> None:
    assert allowed(body) == ["w0", "w1", "w2"]


@pytest.mark.parametrize("body", [OPENED, PROGRESS, FAULT])
def test_nobody_tells_of_a_session_that_is_not_there(
    body: OpenedBody | ProgressBody | ErrorBody,
) -> None:
    assert not may_tell_head(None, WorkerId("w2"), body)


def token(session_id: str) -> ChosenToken:
    return ChosenToken(session_id, EPOCH, 4, 7)


def believed(sender: str, *session_ids: str) -> list[str]:
    tickets: dict[str, RouteTicket] = {"s1": three_hops(), "s2": ticket(*hops(4))}
    body = TokensBody(tokens=tuple(token(session_id) for session_id in session_ids))
    kept = believed_tokens(body, WorkerId(sender), tickets.get)
    return [one.session_id for one in kept.tokens]


def test_tokens_count_only_from_the_tail_of_each_ones_session() -> None:
    assert believed("w2", "s1", "s2", "unknown", "s1") == ["s1", "s1"]
    assert believed("w0", "s1", "s2") == ["s2"]
    assert believed("w1", "s1", "s2") == []


def test_a_session_is_closed_by_its_previous_hop_or_its_head() -> None:
    session = hop_session(three_hops(), place=2)
    assert [name for name in EVERYBODY if may_close(session, WorkerId(name))] == ["w0", "w1"]


def test_a_session_on_the_first_hop_is_closed_by_that_worker_alone() -> None:
    session = hop_session(three_hops(), place=0)
    assert [name for name in EVERYBODY if may_close(session, WorkerId(name))] == ["w0"]


def test_a_session_whose_opening_is_on_its_way_may_be_closed_before() -> None:
    assert may_close(None, WorkerId("w9"))


def test_a_fault_is_passed_on_for_hops_of_the_route_only() -> None:
    session = hop_session(three_hops(), place=1)
    passed = [name for name in EVERYBODY if may_have_passed_on(session, WorkerId(name))]
    assert passed == ["w0", "w1", "w2"]
    assert not may_have_passed_on(None, WorkerId("w0"))
