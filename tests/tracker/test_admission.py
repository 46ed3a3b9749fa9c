import msgspec
import pytest

from meshnet_common.edge.clock import ManualClock
from meshnet_common.ids import WorkerId
from meshnet_tracker.admission import Admissions, RouteWish, Signer
from meshnet_tracker.models import UnknownModelError
from meshnet_tracker.planning.routes import NoRouteError
from meshnet_tracker.settings import TrackerSettings
from meshnet_tracker.store.store import Store
from meshnet_tracker.view import MeshView
from tests.tracker.builders import NOW, preset, shard
from tests.tracker.store.meshes import join


@pytest.fixture
async def admissions(store: Store) -> Admissions:
    await store.add_preset(preset(), NOW)
    signer, clock = await Signer.of(store, NOW), ManualClock(NOW)
    return Admissions(store, MeshView(store), signer, clock, TrackerSettings().renewal_seconds)


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
    admissions: Admissions, store: Store
) -> None:
    await join(store, "w1", shard(0, 6))
    model = await admissions.find_model("tiny")
    answer = await admissions.route(model, await admissions.admit(), RouteWish())
    old = msgspec.structs.replace(
        (await Signer.of(store, NOW)).verify(answer.ticket), variant_digest="another"
    )
    with pytest.raises(UnknownModelError):
        await admissions.renew(old, frozenset())
