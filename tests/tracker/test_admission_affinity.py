from meshnet_common.edge.clock import ManualClock
from meshnet_tracker.admission import Admissions, RouteWish
from meshnet_tracker.settings import TrackerSettings
from meshnet_tracker.signing import Signer
from meshnet_tracker.store.store import Store
from meshnet_tracker.view import MeshView
from tests.tracker.builders import NOW, preset, shard
from tests.tracker.store.meshes import join

NAMES = ("w1", "w2", "w3")


async def _admissions(store: Store) -> Admissions:
    settings, clock = TrackerSettings(), ManualClock(NOW)
    signer = await Signer.of(store, clock, settings.renewal_seconds)
    await store.add_preset(preset(), NOW)
    for name in NAMES:
        await join(store, name, shard(0, 6))
    return Admissions(store, MeshView(store), signer, clock, settings)


async def _head(admissions: Admissions, prefix: str) -> str:
    """Name the Head Worker of one request that is answered before the next."""
    model = await admissions.find_model("tiny")
    answer = await admissions.route(model, await admissions.admit(prefix), RouteWish())
    admissions.ended(answer.hops)
    return answer.hops[0].worker_id


async def test_one_prefix_has_one_head_and_many_prefixes_have_all(store: Store) -> None:
    admissions = await _admissions(store)
    firsts = [await _head(admissions, f"talk {number}") for number in range(30)]
    assert [await _head(admissions, f"talk {number}") for number in range(30)] == firsts
    assert set(firsts) == set(NAMES)


async def test_a_prefix_that_is_asked_for_nine_times_at_once_costs_no_balance(
    store: Store,
) -> None:
    admissions = await _admissions(store)
    model = await admissions.find_model("tiny")
    same = await admissions.admit("talk 0")
    answers = [await admissions.route(model, same, RouteWish()) for _ in range(9)]
    heads = [answer.hops[0].worker_id for answer in answers]
    assert {heads.count(name) for name in NAMES} == {3}
