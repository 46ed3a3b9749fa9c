import pytest

from meshnet_common.shard_range import ShardRange
from meshnet_tracker.models import UnknownModelError, find_model, served_models, unavailable
from meshnet_tracker.planning.snapshot import VariantKey
from tests.tracker.builders import preset

TINY = preset(quantizations=("bfloat16", "float32")).preset


def test_the_bare_name_is_the_default_variant() -> None:
    assert find_model([TINY], "tiny").key == VariantKey("tiny", "bfloat16")
    assert find_model([TINY], "tiny-float32").key == VariantKey("tiny", "float32")


@pytest.mark.parametrize("name", ["", "tiny-bfloat16", "tiny-nf4", "TINY", "tiny "])
def test_no_other_name_finds_it(name: str) -> None:
    with pytest.raises(UnknownModelError):
        find_model([TINY], name)


def test_every_served_variant_has_a_name() -> None:
    assert [model.name for model in served_models([TINY])] == ["tiny", "tiny-float32"]


def test_missing_layers_are_named_with_their_last_included() -> None:
    gaps = [ShardRange(1, 3), ShardRange(5, 6)]
    error = unavailable(find_model([TINY], "tiny"), gaps)
    assert "of its layers 0-5, 1-2, 5 have no ready worker" in error.detail
