import pytest
import torch
from torch import nn

from meshnet_worker.engine.probe import (
    Structure,
    UnsupportedModelError,
    accepts,
    set_apart,
    structure_of,
)


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.map = nn.Linear(4, 4, device="meta")

    def forward(self, hidden: torch.Tensor, extra: object = None) -> tuple[torch.Tensor]:
        del extra
        return (hidden + self.map(hidden),)


class Model(nn.Module):
    """A model of three Layers; its kinds differ in what they do beside running them."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(8, 4, device="meta")
        self.layers = nn.ModuleList(Layer() for _ in range(3))
        self.norm = nn.LayerNorm(4, device="meta")

    def forward(self, input_ids: torch.Tensor, position_ids: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.embedding(input_ids)
        for layer in self.layers:
            (hidden,) = layer(hidden, position_ids)
        normed: torch.Tensor = self.norm(hidden)
        return normed


class AddsEmbeddingsAgain(Model):
    def forward(self, input_ids: torch.Tensor, position_ids: torch.Tensor) -> torch.Tensor:
        del position_ids
        hidden: torch.Tensor = self.embedding(input_ids)
        first = hidden
        for layer in self.layers:
            (hidden,) = layer(hidden, first)
        return hidden


class SharesBehindItsLayers(Model):
    def forward(self, input_ids: torch.Tensor, position_ids: torch.Tensor) -> torch.Tensor:
        del position_ids
        hidden: torch.Tensor = self.embedding(input_ids)
        shared: list[torch.Tensor] = []
        for layer in self.layers:
            (hidden,) = layer(hidden, list(shared))
            shared.append(hidden)
        return hidden


class ReadsIds(Model):
    def forward(self, input_ids: torch.Tensor, position_ids: torch.Tensor) -> torch.Tensor:
        del position_ids
        hidden: torch.Tensor = self.embedding(input_ids)
        for layer in self.layers:
            (hidden,) = layer(hidden, extra=input_ids)
        return hidden


class ChangesBetween(Model):
    def forward(self, input_ids: torch.Tensor, position_ids: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.embedding(input_ids)
        for layer in self.layers:
            (hidden,) = layer(hidden * 2, position_ids)
        return hidden


class SumsAllLayers(Model):
    def forward(self, input_ids: torch.Tensor, position_ids: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.embedding(input_ids)
        total = 0 * hidden
        for layer in self.layers:
            (hidden,) = layer(hidden, position_ids)
            total = total + hidden
        return total


class RunsTwice(Model):
    def forward(self, input_ids: torch.Tensor, position_ids: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.embedding(input_ids)
        for layer in (*self.layers, *self.layers):
            (hidden,) = layer(hidden, position_ids)
        return hidden


class HandsOnMore(Model):
    def forward(self, input_ids: torch.Tensor, position_ids: torch.Tensor) -> torch.Tensor:
        del position_ids
        hidden: torch.Tensor = self.embedding(input_ids)
        chosen = None
        for layer in self.layers:
            hidden, chosen = layer(hidden, chosen)
        return hidden


class HandingLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.map = nn.Linear(4, 4, device="meta")

    def forward(self, hidden: torch.Tensor, extra: object = None) -> tuple[torch.Tensor, ...]:
        del extra
        return hidden + self.map(hidden), hidden.argmax(-1)


def learn(model: Model) -> Structure:
    return structure_of(model, tuple(model.layers), model)


def test_the_entry_the_exit_and_the_way_of_hidden_states_are_seen() -> None:
    model = Model()
    structure = learn(model)
    assert (structure.entry, structure.exit) == ((model.embedding,), (model.norm,))
    assert (structure.hidden, structure.returned) == (0, 1)


@pytest.mark.parametrize(
    "kind",
    [
        AddsEmbeddingsAgain,
        SharesBehindItsLayers,
        ReadsIds,
        ChangesBetween,
        SumsAllLayers,
        RunsTwice,
    ],
)
def test_a_model_that_cannot_be_cut_between_its_layers_is_refused(kind: type[Model]) -> None:
    with pytest.raises(UnsupportedModelError):
        learn(kind())


class KeepingLayer(Layer):
    """Carries something from pass to pass, in a place of its own."""

    state: torch.Tensor | None = None

    def forward(self, hidden: torch.Tensor, extra: object = None) -> tuple[torch.Tensor]:
        del extra
        (output,) = super().forward(hidden if self.state is None else hidden + self.state)
        self.state = output
        return (output,)


def test_a_state_that_layers_keep_is_refused() -> None:
    model = Model()
    model.layers = nn.ModuleList(KeepingLayer() for _ in range(3))
    with pytest.raises(UnsupportedModelError, match="behind their inputs"):
        learn(model)


def test_a_choice_that_is_handed_on_is_refused() -> None:
    model = HandsOnMore()
    model.layers = nn.ModuleList(HandingLayer() for _ in range(3))
    with pytest.raises(UnsupportedModelError, match="hand on more"):
        learn(model)


def test_a_probe_leaves_no_hook() -> None:
    model = Model()
    learn(model)
    assert not any(module._forward_hooks for module in model.modules())
    assert not any(module._forward_pre_hooks for module in model.modules())


class Remembers(Model):
    """Leaves what passes leave: a table, a plain attribute, a buffer of its own and another."""

    def __init__(self) -> None:
        super().__init__()
        self.slopes: torch.Tensor = nn.Buffer(torch.ones(1, 1))
        self.places: dict[str, torch.Tensor] = {}
        self.longest = 1

    def forward(self, input_ids: torch.Tensor, position_ids: torch.Tensor) -> torch.Tensor:
        self.last = position_ids
        self.places["last"] = position_ids
        self.longest += 1
        self.slopes.mul_(2)
        self.register_buffer("more", position_ids, persistent=False)
        self.slopes = self.slopes * 2
        return super().forward(input_ids, position_ids)


def test_a_probe_leaves_nothing_behind() -> None:
    model = Remembers()
    before, buffers = dict(vars(model)), dict(model.named_buffers())
    slopes = model.slopes
    learn(model)
    assert vars(model) == before
    assert dict(model.named_buffers()) == buffers
    assert (model.places, model.longest) == ({}, 1)
    assert model.slopes is slopes
    assert slopes.tolist() == [[1.0]]


def test_a_pass_in_numbers_works_on_copies() -> None:
    model = Remembers()
    with set_apart(model, "cpu"):
        model.slopes.mul_(2)
        assert model.slopes.tolist() == [[2.0]]
    assert model.slopes.tolist() == [[1.0]]


def test_what_a_model_accepts_is_read_from_its_forward() -> None:
    assert accepts(Model(), "position_ids")
    assert not accepts(Model(), "cache")
