import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from meshnet_worker.engine.packed import bias_of, is_linear


class ScaledLinear(nn.Linear):
    """A linear map that does more than that."""


def test_only_what_is_a_linear_map_and_no_more_counts_as_one() -> None:
    assert is_linear(nn.Linear(2, 3))
    assert is_linear(Conv1D(3, 2))
    assert not is_linear(ScaledLinear(2, 3))
    assert not is_linear(nn.Embedding(2, 3))


def test_a_bias_is_the_one_that_is_there_now() -> None:
    linear = nn.Linear(2, 3)
    linear.bias = nn.Parameter(torch.ones(3))
    assert bias_of(linear) is linear.bias
    assert bias_of(nn.Linear(2, 3, bias=False)) is None
