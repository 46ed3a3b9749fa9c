import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from meshnet_worker.engine.packed import bias_of, is_linear, linear_unpacked, unpacked_dtype


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


def test_a_weight_in_pieces_of_another_dtype_makes_the_same_map() -> None:
    linear = nn.Linear(8, 6).bfloat16()
    given = torch.randn(2, 3, 8).bfloat16()
    with torch.no_grad():
        pieces = torch.split(linear.weight.float(), 4)
        output = linear_unpacked(given, pieces, linear.bias)
        torch.testing.assert_close(output, linear(given), rtol=0.02, atol=0.02)


def test_weights_are_unpacked_to_float32_on_the_cpu_alone() -> None:
    assert unpacked_dtype(torch.device("cpu"), torch.bfloat16) == torch.float32
    assert unpacked_dtype(torch.device("cuda"), torch.bfloat16) == torch.bfloat16
