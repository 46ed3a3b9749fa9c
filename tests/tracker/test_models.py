from collections.abc import Callable

import pytest

from meshnet_common.shard_range import ShardRange
from meshnet_tracker.models import (
    Catalogue,
    NameBook,
    ServedModel,
    UnknownModelError,
    find_model,
    served_models,
    unavailable,
)
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


@pytest.mark.parametrize("layers", [1, 6])
def test_layers_that_are_all_missing_are_named_once(layers: int) -> None:
    found = find_model([preset(layers=layers).preset], "tiny")
    error = unavailable(found, [ShardRange(0, layers)])
    named = "0" if layers == 1 else "0-5"
    assert error.detail.endswith(f": none of its layers {named} has a ready worker.")


def model(name: str) -> ServedModel:
    return find_model([TINY, preset("next").preset], name)


def test_an_alias_goes_before_a_models_own_name() -> None:
    names = NameBook({"chat": "tiny", "tiny": "next"})
    assert [names.stands_for(name) for name in ("chat", "tiny", "next")] == ["tiny", "next", "next"]


def test_a_canary_is_public_under_an_alias_only() -> None:
    names = NameBook({"chat": "next"}, frozenset({"next"}))
    asked = [("tiny", "tiny"), ("next", "next"), ("next", "chat")]
    assert [names.is_public(model(own), name) for own, name in asked] == [True, False, True]


def test_a_model_is_listed_under_every_name_that_means_it() -> None:
    names = NameBook({"chat": "next", "a": "next", "tiny": "next"}, frozenset({"other"}))
    assert names.listed_as(model("next")) == ("next", "a", "chat", "tiny")
    assert names.listed_as(model("tiny")) == ()
    assert names.listed_as(model("tiny-float32")) == ("tiny-float32",)
    assert NameBook({}, frozenset({"next"})).listed_as(model("next")) == ()
    assert NameBook({"tiny": "tiny"}).listed_as(model("tiny")) == ("tiny",)


CATALOGUE = Catalogue(
    [TINY, preset("next").preset], NameBook({"chat": "next"}, canaries=frozenset({"next"}))
)


def test_a_canary_is_found_by_its_alias_and_in_a_place_of_its_own() -> None:
    assert CATALOGUE.find("next") == CATALOGUE.find_canary("next") == model("next")
    assert CATALOGUE.find_public("chat") == model("next")


@pytest.mark.parametrize(
    ("find", "name"),
    [
        (CATALOGUE.find, "nothing"),
        (CATALOGUE.find_public, "next"),
        (CATALOGUE.find_canary, "chat"),
        (CATALOGUE.find_canary, "tiny"),
    ],
)
def test_in_the_wrong_place_a_name_finds_nothing(
    find: Callable[[str], ServedModel], name: str
) -> None:
    with pytest.raises(UnknownModelError):
        find(name)


def test_a_variant_is_found_while_it_has_the_same_weights() -> None:
    found = CATALOGUE.find("tiny-float32")
    assert CATALOGUE.find_variant(found.key, found.variant.digest) == found
    with pytest.raises(UnknownModelError):
        CATALOGUE.find_variant(found.key, "other")


def test_where_no_layer_is_missing_the_wish_is_in_the_way() -> None:
    error = unavailable(CATALOGUE.find("tiny"), ())
    assert error.detail.endswith("left but those that the request does not want.")
