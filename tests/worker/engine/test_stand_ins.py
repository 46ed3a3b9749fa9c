from typing import Any

import pytest
import torch
from torch import nn

from meshnet_worker.engine.probe import Structure
from meshnet_worker.engine.stand_ins import Entered, Foreign, Left, LeftError

HIDDEN = torch.ones(1, 2, 4)


class Layer(nn.Module):
    kind = "full"

    def forward(self, hidden_states: torch.Tensor, scale: float = 2.0) -> torch.Tensor:
        return hidden_states * scale


@pytest.mark.parametrize(("returned", "expected"), [(0, HIDDEN), (2, (HIDDEN, None))])
def test_hidden_states_pass_through_a_foreign_layer(returned: int, expected: object) -> None:
    foreign = Foreign(Layer(), Structure(returned=returned))
    got = foreign(HIDDEN, scale=3.0)
    assert got is expected or got == expected


def test_a_foreign_layer_has_the_layers_attributes() -> None:
    assert Foreign(Layer(), Structure()).kind == "full"


@pytest.mark.parametrize("place", [0, "hidden_states"])
def test_the_first_layer_of_a_hop_reads_what_came_in(place: int | str) -> None:
    entered = Entered(Layer(), Structure(hidden=place), 5 * HIDDEN)
    got: Any = entered(HIDDEN) if place == 0 else entered(hidden_states=HIDDEN)
    assert torch.equal(got, 10 * HIDDEN)


def test_a_pass_ends_behind_the_last_layer_of_a_hop() -> None:
    with pytest.raises(LeftError) as left:
        Left(Layer(), Structure())(HIDDEN)
    assert torch.equal(left.value.hidden, 2 * HIDDEN)
