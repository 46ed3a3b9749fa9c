from meshnet_tracker.planning.snapshot import Holding, VariantKey
from tests.tracker.planning.meshes import mesh, preset, variant


def test_a_snapshot_names_every_variant_of_every_preset() -> None:
    snapshot = mesh(preset(variant(4), variant(4, "int8"), name="qwen"))
    keys = [key for key, _ in snapshot.variants()]
    assert keys == [VariantKey("qwen", "nf4"), VariantKey("qwen", "int8")]


def test_holdings_are_in_the_order_of_a_shards_life() -> None:
    assert list(Holding) == [Holding.ORDERED, Holding.LOADING, Holding.READY, Holding.DRAINING]
