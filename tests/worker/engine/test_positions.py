"""Toy models whose first Layer is given numbers that are made of positions in different ways."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import nn
from transformers import LlamaConfig, PreTrainedModel

from meshnet_worker.engine.positions import Entry, longest_position
from meshnet_worker.engine.probe import structure_of

LONGEST = 32


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.map = nn.Linear(4, 4, device="meta")

    def forward(self, hidden: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
        del angles
        mapped: torch.Tensor = self.map(hidden)
        return hidden + mapped


class Plain(nn.Module):
    """Gives each row what is its own."""

    def __init__(self) -> None:
        super().__init__()
        self.slope: torch.Tensor = nn.Buffer(torch.ones(1))

    def forward(self, positions: torch.Tensor) -> torch.Tensor:
        return positions * self.slope


class LooksAtAll(Plain):
    def forward(self, positions: torch.Tensor) -> torch.Tensor:
        self.slope.copy_(torch.where(positions.max() >= LONGEST, 0.5, 1.0))
        return positions * self.slope


class Remembers(Plain):
    longest = LONGEST

    def forward(self, positions: torch.Tensor) -> torch.Tensor:
        self.longest = max(self.longest, int(positions.max().item()))
        return positions / self.longest


class Table(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.table: torch.Tensor = nn.Buffer(torch.arange(LONGEST))

    def forward(self, positions: torch.Tensor) -> torch.Tensor:
        return self.table[positions]


class NoNumbers(Plain):
    def forward(self, positions: torch.Tensor) -> torch.Tensor:
        return positions * math.nan


class Model(PreTrainedModel):
    def __init__(self, angles: nn.Module, first: int = 0) -> None:
        super().__init__(LlamaConfig(max_position_embeddings=LONGEST))
        self.embedding = nn.Embedding(8, 4, device="meta")
        self.layers = nn.ModuleList(Layer() for _ in range(2))
        self.angles = angles
        self.first = first

    def forward(
        self,
        input_ids: torch.Tensor,
        position_ids: torch.Tensor | None = None,
        use_cache: bool = False,
    ) -> torch.Tensor:
        del use_cache
        if position_ids is None:
            position_ids = self.first + torch.arange(input_ids.shape[1]).unsqueeze(0)
        hidden: torch.Tensor = self.embedding(input_ids)
        angles = self.angles(position_ids)
        for layer in self.layers:
            hidden = layer(hidden, angles)
        return hidden


def entry(angles: nn.Module, first: int = 0) -> Entry:
    model = Model(angles, first)
    # Watched without what looks at values, which is not what is tried here.
    model.angles = Plain()
    structure = structure_of(
        model, tuple(model.layers), lambda ids, spots: model(ids, position_ids=spots)
    )
    model.angles = angles
    return Entry(model, model.layers[0], structure)


def test_positions_of_its_own_are_seen() -> None:
    assert entry(Plain()).is_counted_from_zero()
    assert not entry(Plain(), first=2).is_counted_from_zero()


@pytest.mark.parametrize(
    ("angles", "mixes", "remembers"),
    [
        (Plain, False, False),
        (LooksAtAll, True, False),
        (Remembers, True, True),
        (Table, False, False),
        (NoNumbers, False, False),
    ],
)
def test_what_rows_and_passes_have_to_do_with_each_other_is_seen(
    angles: Callable[[], nn.Module], mixes: bool, remembers: bool
) -> None:
    watched = entry(angles())
    assert watched.mixes_rows() == mixes
    assert watched.remembers_positions() == remembers


@pytest.mark.parametrize("kind", [LooksAtAll, Remembers])
def test_looking_changes_nothing(kind: type[Plain]) -> None:
    angles = kind()
    watched = entry(angles)
    before = dict(vars(angles))
    watched.mixes_rows()
    watched.remembers_positions()
    assert vars(angles) == before
    assert angles.slope.tolist() == [1.0]


def test_the_longest_position_is_the_largest_that_is_named_anywhere() -> None:
    rope = {"rope_type": "any", "original_max_position_embeddings": 16}
    config = {"max_position_embeddings": 64, "rope_parameters": rope, "use_position_bias": True}
    assert longest_position(config) == 64
    assert longest_position({"text_config": {"n_positions": 8}, "vocab_size": 99}) == 8
    assert longest_position({"use_position_bias": True}) == 0
