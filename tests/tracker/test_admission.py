import msgspec
import pytest

from meshnet_common.edge.clock import ManualClock
from meshnet_common.ids import WorkerId
from meshnet_common.protocol.messages import RouteAnswer, RouteHop
from meshnet_common.protocol.tickets import RouteTicket
from meshnet_tracker.admission import (
    Admissions,
    ForgottenSessionError,
    RouteWish,
    SupersededHeadError,
)
from meshnet_tracker.models import UnknownModelError
from meshnet_tracker.planning.routes import NoRouteError
from meshnet_tracker.settings import TrackerSettings
from meshnet_tracker.signing import Signer
from meshnet_tracker.store.store import Store
from meshnet_tracker.view import MeshView
from tests.tracker.builders import NOW, load, preset, shard
from tests.tracker.store.meshes import beat, issue, join, leave

SETTINGS = TrackerSettings()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOW)


@pytest.fixture
async def signer(store: Store, clock: ManualClock) -> Signer:
    return await Signer.of(store, clock, SETTINGS.renewal_seconds)


@pytest.fixture
async def view(store: Store) -> MeshView:
    return MeshView(store)


@pytest.fixture
async def admissions(
    store: Store, clock: ManualClock, signer: Signer, view: MeshView
) -> Admissions:
    await store.add_preset(preset(), NOW)
    return Admissions(store, view, signer, clock, SETTINGS)


async def admitted(admissions: Admissions, signer: Signer, head: str = "w1") -> RouteTicket:
    """Admit a Session that begins on this Worker."""
    model = await admissions.find_model("tiny")
    wish = RouteWish(head=WorkerId(head))
    answer = await admissions.route(model, await admissions.admit(), wish)
    return await signer.verify(answer.ticket)


def ids(*names: str) -> frozenset[WorkerId]:
    return frozenset(map(WorkerId, names))


def shown(answer: RouteAnswer) -> list[tuple[str, int, int]]:
    return [(hop.worker_id, hop.start, hop.end) for hop in answer.hops]


async def test_every_request_gets_the_next_number_and_a_seed_of_its_own(
    admissions: Admissions,
) -> None:
    first, second = await admissions.admit(), await admissions.admit()
    assert second.sequence == first.sequence + 1
    assert first.seed != second.seed


async def test_equal_workers_share_the_sessions(admissions: Admissions, store: Store) -> None:
    for name in ("w1", "w2"):
        await join(store, name, shard(0, 6))
    model = await admissions.find_model("tiny")
    admission = await admissions.admit()
    chosen = [
        (await admissions.route(model, admission, RouteWish())).hops[0].worker_id for _ in range(40)
    ]
    assert 5 < chosen.count("w1") < 35


async def test_many_requests_at_once_are_spread_evenly(
    admissions: Admissions, store: Store
) -> None:
    for name in ("w1", "w2", "w3", "w4"):
        await join(store, name, shard(0, 6))
    model = await admissions.find_model("tiny")
    admission = await admissions.admit()
    chosen = [
        (await admissions.route(model, admission, RouteWish())).hops[0].worker_id for _ in range(20)
    ]
    assert {chosen.count(name) for name in ("w1", "w2", "w3", "w4")} == {5}


async def test_what_is_over_makes_room_before_it_is_reported(
    admissions: Admissions, store: Store
) -> None:
    for name in ("w1", "w2"):
        await join(store, name, shard(0, 6))
    model = await admissions.find_model("tiny")
    admission = await admissions.admit()
    first = await admissions.route(model, admission, RouteWish(head=WorkerId("w1")))
    for _ in range(3):
        answer = await admissions.route(model, admission, RouteWish(exclude=ids("w2")))
        admissions.ended(answer.hops)
    admissions.ended(first.hops)
    await admissions.route(model, admission, RouteWish(head=WorkerId("w2")))
    assert (await admissions.route(model, admission, RouteWish())).hops[0].worker_id == "w1"


async def test_a_model_without_a_chain_has_no_route(admissions: Admissions, store: Store) -> None:
    await join(store, "w1", shard(0, 6))
    model = await admissions.find_model("tiny")
    wish = RouteWish(exclude=frozenset({WorkerId("w1")}))
    with pytest.raises(NoRouteError):
        await admissions.route(model, await admissions.admit(), wish)


async def test_an_unknown_name_is_unknown(admissions: Admissions) -> None:
    with pytest.raises(UnknownModelError):
        await admissions.find_model("nothing")


async def test_a_session_of_a_variant_that_was_replaced_is_not_renewed(
    admissions: Admissions, store: Store, signer: Signer
) -> None:
    await join(store, "w1", shard(0, 6))
    ticket = await admitted(admissions, signer)
    old = msgspec.structs.replace(ticket, variant_digest="another")
    with pytest.raises(UnknownModelError):
        await admissions.renew(old)
    with pytest.raises(UnknownModelError):
        await admissions.move_head(old, ids())


async def test_a_ticket_limits_its_session_to_the_models_context(
    admissions: Admissions, store: Store, signer: Signer
) -> None:
    await join(store, "w1", shard(0, 6))
    ticket = await admitted(admissions, signer)
    assert ticket.max_positions == 256
    assert (await signer.verify((await admissions.renew(ticket)).ticket)).max_positions == 256


async def test_a_renewed_route_keeps_the_hops_that_are_left(
    admissions: Admissions, store: Store, signer: Signer, view: MeshView
) -> None:
    for name, run in (("w1", (0, 2)), ("w2", (2, 4)), ("w3", (4, 6))):
        await join(store, name, shard(*run))
    ticket = await admitted(admissions, signer)
    await join(store, "quick", shard(1, 6))
    view.forget()
    answer = await admissions.renew(ticket, faulty=ids("w2"))
    assert shown(answer) == [("w1", 0, 2), ("quick", 2, 4), ("w3", 4, 6)]


async def test_a_faulty_worker_that_lives_is_better_than_none(
    admissions: Admissions, store: Store, signer: Signer
) -> None:
    await join(store, "w1", shard(0, 3))
    await join(store, "w2", shard(3, 6))
    ticket = await admitted(admissions, signer)
    answer = await admissions.renew(ticket, faulty=ids("w2", "w1"))
    assert shown(answer) == [("w1", 0, 3), ("w2", 3, 6)]


async def test_a_worker_that_has_only_refused_is_better_than_a_faulty_one(
    admissions: Admissions, store: Store, signer: Signer
) -> None:
    await join(store, "w1", shard(0, 3))
    for name in ("w2", "w3"):
        await join(store, name, shard(3, 6))
    ticket = await admitted(admissions, signer)
    for faulty, refused in (("w2", "w3"), ("w3", "w2")):
        answer = await admissions.renew(ticket, ids(refused), ids(faulty))
        assert shown(answer)[1] == (refused, 3, 6)


async def test_every_renewal_is_a_new_incarnation_also_of_an_old_ticket(
    admissions: Admissions, store: Store, signer: Signer
) -> None:
    await join(store, "w1", shard(0, 6))
    ticket = await admitted(admissions, signer)
    answers = [await admissions.renew(ticket) for _ in range(3)]
    tickets = [await signer.verify(answer.ticket) for answer in answers]
    assert [each.incarnation for each in tickets] == [2, 3, 4]


async def test_another_head_worker_goes_on_with_the_other_hops(
    admissions: Admissions, store: Store, signer: Signer
) -> None:
    for name, run in (("w1", (0, 3)), ("w2", (3, 6)), ("w3", (0, 6))):
        await join(store, name, shard(*run))
    ticket = await admitted(admissions, signer)
    old = msgspec.structs.replace(ticket, hops=_hops(("w1", 3), ("w2", 6)))
    answer = await admissions.move_head(old, ids())
    moved = await signer.verify(answer.ticket)
    assert shown(answer) == [("w3", 0, 3), ("w2", 3, 6)]
    assert (moved.session_id, moved.incarnation) == (old.session_id, old.incarnation + 1)
    assert (moved.seed, moved.admission_seq) == (old.seed, old.admission_seq)


def _hops(*turns: tuple[str, int]) -> tuple[RouteHop, ...]:
    start = 0
    hops = []
    for name, end in turns:
        hops.append(RouteHop(worker_id=name, url="http://old", start=start, end=end))
        start = end
    return tuple(hops)


async def test_a_head_worker_that_was_replaced_renews_nothing_any_more(
    admissions: Admissions, store: Store, signer: Signer
) -> None:
    for name in ("w1", "w2"):
        await join(store, name, shard(0, 6))
    ticket = await admitted(admissions, signer)
    own = await signer.verify((await admissions.renew(ticket)).ticket)
    moved = await signer.verify((await admissions.move_head(ticket, ids("w1"))).ticket)
    assert (moved.hops[0].worker_id, moved.incarnation) == ("w2", 3)
    for old in (ticket, own):
        with pytest.raises(SupersededHeadError, match="another Head Worker now"):
            await admissions.renew(old)
    assert (await admissions.renew(moved)).hops[0].worker_id == "w2"


async def test_the_old_head_worker_is_taken_again_only_where_no_other_is_and_it_is_not_avoided(
    admissions: Admissions, store: Store, signer: Signer, view: MeshView
) -> None:
    await join(store, "w1", shard(0, 6))
    ticket = await admitted(admissions, signer)
    with pytest.raises(NoRouteError):
        await admissions.move_head(ticket, ids("w1"))
    assert (await admissions.move_head(ticket, ids())).hops[0].worker_id == "w1"
    await join(store, "w2", shard(0, 6))
    view.forget()
    assert (await admissions.move_head(ticket, ids())).hops[0].worker_id == "w2"


async def test_a_stream_that_was_never_renewed_for_hours_can_still_be_mended(
    admissions: Admissions, store: Store, signer: Signer, clock: ManualClock
) -> None:
    await join(store, "w1", shard(0, 6))
    ticket = await admitted(admissions, signer)
    clock.advance(6 * 3600)
    assert (await admissions.renew(ticket)).hops[0].worker_id == "w1"
    assert (await admissions.move_head(ticket, ids())).hops[0].worker_id == "w1"


async def test_a_session_lives_as_long_as_it_is_renewed_with_whichever_ticket(
    admissions: Admissions, store: Store, signer: Signer, clock: ManualClock
) -> None:
    await join(store, "w1", shard(0, 6))
    ticket = await admitted(admissions, signer)
    for _ in range(3):
        clock.advance(SETTINGS.renewal_seconds - 1)
        await admissions.renew(ticket)
    newest = await signer.verify((await admissions.renew(ticket)).ticket)
    clock.advance(SETTINGS.renewal_seconds)
    assert (await signer.verify((await admissions.renew(newest)).ticket)).incarnation == 6


async def test_a_session_that_was_not_renewed_for_too_long_goes_on_nowhere(
    admissions: Admissions, store: Store, signer: Signer, clock: ManualClock
) -> None:
    await join(store, "w1", shard(0, 6))
    ticket = await admitted(admissions, signer)
    clock.advance(5.0)
    await admissions.renew(ticket)
    clock.advance(SETTINGS.renewal_seconds + 1)
    for going_on in (admissions.renew(ticket), admissions.move_head(ticket, ids())):
        with pytest.raises(ForgottenSessionError, match="86401 seconds old") as refused:
            await going_on
        assert "send the request again" in str(refused.value)


async def test_a_model_may_come_back_while_loads_that_close_its_gaps_are_under_way_or_possible(
    admissions: Admissions, store: Store, view: MeshView
) -> None:
    model = await admissions.find_model("tiny")

    async def may_come_back() -> bool:
        view.forget()
        return await admissions.may_come_back(model)

    assert not await may_come_back()
    await join(store, "w1", shard(0, 3))
    assert await may_come_back()
    await issue(store, load("w1", 3, 6))
    assert await may_come_back()
    await beat(store, "w1", shard(0, 6))
    assert await may_come_back()
    await leave(store, "w1")
    assert not await may_come_back()
