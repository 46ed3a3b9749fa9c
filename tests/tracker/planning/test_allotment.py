from meshnet_common.protocol.messages import DirectiveReason
from meshnet_tracker.planning.allotment import FEW_WORKERS, LEAST_SHARE, replicate, weights
from meshnet_tracker.planning.draft import Draft
from meshnet_tracker.planning.snapshot import (
    Demand,
    MeshSnapshot,
    RebalanceDirective,
    VariantKey,
)
from tests.tracker.planning.meshes import (
    NO_HEADROOM,
    NOW,
    held,
    mesh,
    preset,
    told,
    variant,
    worker,
)


def replicas(snapshot: MeshSnapshot) -> list[RebalanceDirective]:
    draft = Draft.of(snapshot, NO_HEADROOM, NOW)
    replicate(draft)
    return draft.directives


def test_the_window_with_most_of_the_thinnest_layers_is_replicated() -> None:
    snapshot = mesh(
        12, worker("all", 12, held(0, 12)), worker("b", 6, held(0, 6)), worker("free", 4)
    )
    (order,) = replicas(snapshot)
    assert told([order]) == [("free", "LOAD", 6, 10)]
    assert order.reason is DirectiveReason.REDUNDANCY


def test_among_equals_the_slowest_layers_are_replicated() -> None:
    snapshot = mesh(
        12, worker("a", 6, held(0, 6), speed=3.0), worker("b", 6, held(6, 12)), worker("free", 6)
    )
    assert told(replicas(snapshot)) == [("free", "LOAD", 6, 12)]


def test_a_hotspot_comes_before_redundancy() -> None:
    snapshot = mesh(
        12,
        worker("a", 6, held(0, 6)),
        worker("b", 6, held(6, 12)),
        worker("c", 6, held(6, 12)),
        worker("d", 6, held(0, 6)),
        worker("e", 6, held(0, 6), sessions=9),
        worker("free", 6),
    )
    (order,) = replicas(snapshot)
    assert told([order]) == [("free", "LOAD", 0, 6)]
    assert order.reason is DirectiveReason.HOTSPOT


def test_the_fastest_choose_first_and_the_next_see_what_they_chose() -> None:
    snapshot = mesh(
        12,
        worker("all", 12, held(0, 12)),
        worker("slow", 6),
        worker("fast", 6, speed=2.0),
    )
    assert told(replicas(snapshot)) == [("fast", "LOAD", 0, 6), ("slow", "LOAD", 6, 12)]


def test_a_worker_bound_to_layer_zero_replicates_from_there() -> None:
    pool = (
        worker("a", 6, held(0, 6), speed=3.0),
        worker("b", 6, held(6, 12)),
        worker("head", 6, bound=True),
    )
    assert told(replicas(mesh(12, *pool))) == [("head", "LOAD", 0, 6)]


def test_nothing_is_replicated_while_a_layer_is_missing() -> None:
    assert replicas(mesh(12, worker("a", 6, held(0, 6)), worker("free", 6))) == []


def test_a_worker_that_fits_no_layer_is_left_alone() -> None:
    assert replicas(mesh(4, worker("a", 4, held(0, 4)), worker("free", 0))) == []


def test_the_variant_with_fewest_replicas_is_thickened_first() -> None:
    int8 = VariantKey("llama", "int8")
    both = preset(variant(4), variant(4, "int8"))
    any_of_two = ["nf4", "int8"]
    snapshot = mesh(
        both,
        worker("a", 4, held(0, 4)),
        worker("b", 4, held(0, 4)),
        worker("c", 4, held(0, 4, key=int8), quantizations=any_of_two),
        worker("free", 4, quantizations=any_of_two),
    )
    assert [order.variant for order in replicas(snapshot)] == [int8]


def test_after_a_second_replica_the_variant_with_least_flow_for_its_demand_comes_first() -> None:
    names = "m0", "m1"
    keys = [VariantKey(name, "nf4") for name in names]
    twice = [worker(f"{key.model}{i}", 4, held(0, 4, key=key)) for key in keys for i in range(2)]
    presets = tuple(preset(variant(4), name=name) for name in names)
    demand = Demand(keys[0], 1.0), Demand(keys[1], 3.0)
    snapshot = MeshSnapshot(presets, (*twice, worker("free", 4)), demand=demand)
    assert [order.variant for order in replicas(snapshot)] == [keys[1]]


def test_many_free_workers_are_placed_as_whole_copies_of_what_is_asked_for() -> None:
    names = "m0", "m1"
    keys = [VariantKey(name, "nf4") for name in names]
    holding = [worker(key.model, 4, held(0, 4, key=key)) for key in keys]
    free = [worker(f"free{index:02}", 2) for index in range(FEW_WORKERS + 2)]
    presets = tuple(preset(variant(4), name=name) for name in names)
    demand = Demand(keys[0], 1.0), Demand(keys[1], 1.0)
    ordered = replicas(MeshSnapshot(presets, (*holding, *free), demand=demand))
    assert len(ordered) == len(free)
    counts = [sum(order.variant == key for order in ordered) for key in keys]
    assert abs(counts[0] - counts[1]) <= 2


def test_a_model_that_nobody_asks_for_counts_a_little() -> None:
    presets = tuple(preset(variant(4), name=name) for name in ("m0", "m1"))
    demand = (Demand(VariantKey("m0", "nf4"), 2.0),)
    draft = Draft.of(MeshSnapshot(presets, (), demand=demand), NO_HEADROOM, NOW)
    assert weights(draft) == [2.0, 2.0 * LEAST_SHARE]
