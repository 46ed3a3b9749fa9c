from meshnet_common.ids import WorkerId
from meshnet_common.shard_range import ShardRange
from meshnet_tracker.planning.capacity import LayerSizes
from meshnet_tracker.planning.holders import Reading, variant_drafts
from meshnet_tracker.planning.pins import Binding
from meshnet_tracker.planning.snapshot import Holding, Pin, VariantKey
from tests.tracker.planning.meshes import GB, KEY, NO_HEADROOM, held, variant, worker

OTHER = VariantKey("llama", "int8")
SIZES = {KEY: LayerSizes.of(variant(8)), OTHER: LayerSizes.of(variant(8, "int8"))}


def reading(*, cooling: str = "", pin: Pin | None = None) -> Reading:
    bindings = {pin.worker_id: Binding(pin)} if pin else {}
    return Reading(NO_HEADROOM, SIZES, frozenset({WorkerId(cooling)}), bindings)


def test_what_drains_leaves_room_and_what_is_ordered_takes_it() -> None:
    view = worker("a", 8, held(0, 2), held(2, 4, Holding.DRAINING), held(4, 7, Holding.ORDERED))
    assert reading().room(view) == 3 * GB


def test_beside_something_of_unknown_size_there_is_no_room() -> None:
    assert reading().room(worker("a", 8, held(0, 1, key=VariantKey("gone", "nf4")))) == 0


def test_a_pinned_worker_counts_with_the_layers_of_its_pin_and_gets_no_other_order() -> None:
    pin = Pin(WorkerId("a"), KEY, ShardRange(2, 6))
    (holder,) = reading(pin=pin).holders(worker("a", 8, held(0, 4)), KEY)
    assert holder.run == ShardRange(2, 4)
    assert not holder.settled
    assert not holder.may_load


def test_a_cooling_worker_may_drop_and_not_load() -> None:
    (holder,) = reading(cooling="a").holders(worker("a", 8, held(0, 4)), KEY)
    assert holder.settled
    assert not holder.may_load


def test_each_variant_is_read_with_what_is_ready_and_what_is_planned() -> None:
    pool = [
        worker("a", 8, held(0, 4), held(0, 1, key=OTHER)),
        worker("b", 8, held(4, 8, Holding.LOADING)),
    ]
    nf4, int8 = variant_drafts([KEY, OTHER], pool, reading())
    assert (nf4.ready, nf4.planned) == ([1] * 4 + [0] * 4, [1] * 8)
    assert nf4.in_flight
    assert not nf4.gaps
    assert int8.gaps == (ShardRange(1, 8),)
