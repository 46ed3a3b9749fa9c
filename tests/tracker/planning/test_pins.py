from dataclasses import replace

import pytest

from meshnet_common.ids import WorkerId
from meshnet_common.shard_range import ShardRange
from meshnet_tracker.planning.capacity import LayerSizes
from meshnet_tracker.planning.pins import bindings_of, refusal
from meshnet_tracker.planning.snapshot import Pin, VariantKey, WorkerView
from tests.tracker.planning.meshes import KEY, NO_HEADROOM, mesh, variant, worker

SIZES = {KEY: LayerSizes.of(variant(8))}


def pin(start: int = 0, end: int = 4, name: str = "a", key: VariantKey = KEY) -> Pin:
    return Pin(WorkerId(name), key, ShardRange(start, end))


def why(said: Pin, view: WorkerView) -> str:
    return refusal(said, {view.worker_id: view}, SIZES, NO_HEADROOM)


def test_a_pin_that_fits_is_obeyed() -> None:
    assert why(pin(), worker("a", 4)) == ""


@pytest.mark.parametrize(
    ("said", "view", "part"),
    [
        (pin(name="b"), worker("a", 4), "not in the Mesh"),
        (pin(key=VariantKey("other", "nf4")), worker("a", 4), "not served"),
        (pin(), worker("a", 4, quantizations=["int8"]), "quantization"),
        (pin(4, 9), worker("a", 8), "8 Layers only"),
        (pin(1, 4), worker("a", 4, bound=True), "from 0 on"),
        (pin(), worker("a", 3), "it takes"),
    ],
)
def test_a_pin_that_cannot_be_obeyed_says_why(said: Pin, view: WorkerView, part: str) -> None:
    assert part in why(said, view)


def test_of_several_pins_the_first_holds_and_who_is_emptied_holds_nothing() -> None:
    emptied = replace(worker("b", 8), retiring=True)
    snapshot = replace(mesh(8, worker("a", 8), emptied), pins=(pin(4, 8), pin(0, 4)))
    workers = {view.worker_id: view for view in snapshot.workers}
    bindings = bindings_of(snapshot, workers, SIZES, NO_HEADROOM)
    assert bindings[WorkerId("a")].pin == pin(0, 4)
    assert bindings[WorkerId("b")].pin is None


def test_of_a_bound_worker_only_what_it_is_to_keep_counts() -> None:
    snapshot = replace(mesh(8, worker("a", 8)), pins=(pin(2, 4),))
    workers = {view.worker_id: view for view in snapshot.workers}
    binding = bindings_of(snapshot, workers, SIZES, NO_HEADROOM)[WorkerId("a")]
    assert binding.kept_of(KEY, [ShardRange(0, 8)]) == [ShardRange(2, 4)]
    assert binding.kept_of(VariantKey("other", "nf4"), [ShardRange(0, 8)]) == []
