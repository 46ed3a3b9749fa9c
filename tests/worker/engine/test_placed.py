from pathlib import Path

import pytest
import torch
from torch import nn

from meshnet_worker.engine.packed import Forward, UnpackableWeightError
from meshnet_worker.engine.parts import Parts
from meshnet_worker.engine.placed import PlacedWeights
from meshnet_worker.engine.skeleton import Skeleton
from tests.worker.conftest import ModelFolders
from tests.worker.models import HIDDEN_SIZE, WORDS

HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"


class Noted:
    """A packed weight that says which module it computes for."""

    size_bytes = 7

    def forward_of(self, module: nn.Module) -> Forward:
        if isinstance(module, nn.LayerNorm | nn.ModuleList) or "Norm" in type(module).__name__:
            raise UnpackableWeightError
        return lambda _given: torch.tensor(len(type(module).__name__))


def placed_in(folder: Path) -> PlacedWeights:
    skeleton = Skeleton(str(folder), torch.float32)
    return PlacedWeights(skeleton.model, Parts(skeleton))


@pytest.fixture
def placed(model_folders: ModelFolders) -> PlacedWeights:
    return placed_in(model_folders("llama-tied"))


def test_nothing_is_held_at_first(placed: PlacedWeights) -> None:
    assert (placed.holds(HEAD), placed.size_bytes(HEAD)) == (False, None)


def test_a_tied_weight_is_held_under_both_names(placed: PlacedWeights) -> None:
    placed.put(EMBEDDING, torch.zeros(WORDS, HIDDEN_SIZE))
    assert placed.holds(HEAD)
    assert placed.same(HEAD) == placed.same(EMBEDDING)
    assert placed.size_bytes(HEAD) == WORDS * HIDDEN_SIZE * 4


def test_a_packed_weight_computes_in_every_module_that_has_it(placed: PlacedWeights) -> None:
    placed.put_packed(EMBEDDING, Noted())
    assert (placed.holds(HEAD), placed.size_bytes(HEAD)) == (True, 7)
    assert placed.parameter(HEAD).is_meta
    modules = (placed._owner(name)[0] for name in (HEAD, EMBEDDING))
    assert [int(module(torch.zeros(1))) for module in modules] == [len("Linear"), len("Embedding")]


def test_a_new_layout_is_one_modules_own(placed: PlacedWeights) -> None:
    placed.put(HEAD, torch.zeros(WORDS, HIDDEN_SIZE))
    placed.put_prepacked(HEAD, Noted())
    assert (placed.size_bytes(HEAD), placed.holds(EMBEDDING)) == (7, False)


def test_what_is_taken_out_leaves_nothing(placed: PlacedWeights) -> None:
    placed.put_packed(EMBEDDING, Noted())
    for name in (HEAD, EMBEDDING):
        placed.take_out(name, kept=())
        assert not placed.holds(name)
        assert "forward" not in vars(placed._owner(name)[0])


@pytest.mark.parametrize(("gone", "kept"), [(HEAD, EMBEDDING), (EMBEDDING, HEAD)])
def test_what_is_tied_to_a_weight_that_goes_stays_as_it_is(
    gone: str, kept: str, placed: PlacedWeights
) -> None:
    placed.put(EMBEDDING, torch.zeros(WORDS, HIDDEN_SIZE))
    placed.take_out(gone, {kept})
    assert placed.holds(kept)
    placed.put_packed(EMBEDDING, Noted())
    placed.take_out(gone, {kept})
    assert placed.holds(kept)
    assert "forward" in vars(placed._owner(kept)[0])


def test_a_head_in_a_layout_of_its_own_outlives_its_embedding(placed: PlacedWeights) -> None:
    placed.put(HEAD, torch.zeros(WORDS, HIDDEN_SIZE))
    placed.put_prepacked(HEAD, Noted())
    placed.put(EMBEDDING, torch.zeros(WORDS, HIDDEN_SIZE))
    placed.take_out(EMBEDDING, {HEAD})
    assert (placed.holds(HEAD), placed.parameter(EMBEDDING).is_meta) == (True, True)


def test_a_weight_that_a_module_cannot_unpack_changes_nothing(placed: PlacedWeights) -> None:
    with pytest.raises(UnpackableWeightError):
        placed.put_packed("model.norm.weight", Noted())
    assert not placed.holds("model.norm.weight")
