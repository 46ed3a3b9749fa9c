"""Several Sessions of one ticket: the choices of an answer, each with a Route that may fail."""

import pytest

from meshnet_common.edge.clock import ManualClock
from meshnet_common.ids import WorkerId
from meshnet_common.protocol.tickets import RouteTicket
from meshnet_tracker.admission import Admissions, RouteWish, SupersededHeadError
from meshnet_tracker.settings import TrackerSettings
from meshnet_tracker.signing import Signer
from meshnet_tracker.store.store import Store
from meshnet_tracker.view import MeshView
from tests.tracker.builders import NOW, preset, shard
from tests.tracker.store.meshes import join


async def test_choices_go_on_without_fencing_each_other_until_their_head_worker_is_replaced(
    store: Store,
) -> None:
    settings, clock = TrackerSettings(), ManualClock(NOW)
    view = MeshView(store)
    signer = await Signer.of(store, clock, settings.renewal_seconds)
    await store.add_preset(preset(), NOW)
    admissions = Admissions(store, view, signer, clock, settings)
    for name in ("w1", "w2"):
        await join(store, name, shard(0, 6))
    model = await admissions.find_model("tiny")
    wish = RouteWish(head=WorkerId("w1"))
    first = await admissions.route(model, await admissions.admit(), wish)
    ticket = await signer.verify(first.ticket)

    async def renewed(old: RouteTicket) -> RouteTicket:
        return await signer.verify((await admissions.renew(old)).ticket)

    # One goes on three times, the other only then, with the ticket that both began with.
    one = await renewed(await renewed(await renewed(ticket)))
    other = await renewed(ticket)
    again = [await renewed(one), await renewed(other), await renewed(one)]
    incarnations = [fresh.incarnation for fresh in (one, other, *again)]
    assert incarnations == sorted(set(incarnations))

    moved = await signer.verify((await admissions.move_head(ticket, frozenset())).ticket)
    assert moved.hops[0].worker_id == "w2"
    assert moved.incarnation > max(incarnations)
    for old in (ticket, one, other, *again):
        with pytest.raises(SupersededHeadError):
            await renewed(old)
    # At the next Head Worker all of them begin with the same ticket again.
    assert (await renewed(moved)).incarnation < (await renewed(moved)).incarnation
