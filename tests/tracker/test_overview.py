from dataclasses import replace

from meshnet_common.ids import WorkerId
from meshnet_common.protocol.messages import CoverageRow
from meshnet_common.shard_range import ShardRange
from meshnet_tracker.models import NameBook
from meshnet_tracker.overview import (
    AliasEntry,
    LayerRun,
    PinEntry,
    coverage_maps,
    describe_aliases,
    describe_coverage,
    describe_directives,
    describe_pins,
)
from meshnet_tracker.planning.coverage import routable_coverage
from meshnet_tracker.planning.snapshot import (
    HeldShard,
    Holding,
    MeshSnapshot,
    Pin,
    VariantKey,
    WorkerView,
)
from meshnet_tracker.records import AliasRecord
from tests.tracker.builders import MODEL, NOW, preset
from tests.tracker.test_metrics import closed

FLOAT32 = VariantKey("tiny", "float32")


def holder(worker_id: str, start: int, end: int, key: VariantKey = MODEL) -> WorkerView:
    held = HeldShard(key, ShardRange(start, end), Holding.READY)
    return WorkerView(WorkerId(worker_id), "", 1, 1.0, frozenset(), (held,))


MESH = MeshSnapshot(
    (preset(quantizations=("bfloat16", "float32")).preset,),
    (
        holder("w1", 0, 4),
        holder("w2", 0, 2),
        holder("w3", 0, 6, FLOAT32),
        holder("w4", 0, 6, VariantKey("gone", "nf4")),
    ),
)


def test_every_variants_map_is_that_of_the_planner() -> None:
    maps = coverage_maps(MESH)
    assert maps == [(key, routable_coverage(MESH, key)) for key in (MODEL, FLOAT32)]


def test_layers_that_are_only_coming_do_not_count() -> None:
    (worker,) = holder("w1", 0, 6).held
    loading = replace(worker, holding=Holding.LOADING)
    mesh = MeshSnapshot(MESH.presets, (replace(MESH.workers[0], held=(loading,)),))
    assert not any(coverage.servable for _, coverage in coverage_maps(mesh))


def test_a_variant_is_described_with_its_names_gaps_and_thinnest_layer() -> None:
    names = NameBook({"chat": "tiny-float32"}, frozenset({"other"}))
    tiny, float32 = describe_coverage(MESH, names)
    assert (tiny.own_name, tiny.names, tiny.is_servable) == ("tiny", ("tiny",), False)
    assert (tiny.missing_layers, tiny.gaps) == (2, (LayerRun(4, 6),))
    assert tiny.coverage[0] == CoverageRow(start_layer=0, end_layer=2, worker_count=2)
    assert float32.names == ("tiny-float32", "chat")
    assert (float32.is_servable, float32.thinnest_replicas, float32.gaps) == (True, 1, ())


def test_a_canary_is_told_as_one() -> None:
    tiny, _ = describe_coverage(MESH, NameBook({}, frozenset({"tiny"})))
    assert (tiny.is_canary, tiny.names) == (True, ())


def test_pins_aliases_and_directives_are_told_in_plain_values() -> None:
    (pin,) = describe_pins([Pin(WorkerId("w1"), MODEL, ShardRange(2, 5))])
    assert pin == PinEntry(
        worker_id="w1", model="tiny", quantization="bfloat16", start_layer=2, end_layer=5
    )
    (alias,) = describe_aliases([AliasRecord("chat", "v2", "v1", NOW)])
    assert alias == AliasEntry(name="chat", target="v2", prior="v1", changed_at=NOW)
    (directive,) = describe_directives([closed(20)], NOW + 30)
    assert (directive.kind, directive.state, directive.age_seconds) == ("LOAD_SHARD", "failed", 30)
