import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, dequantize
from torch import nn

from meshnet_common.weights.gguf_header import KINDS, GgufKind
from meshnet_worker.engine import gguf_blocks
from meshnet_worker.engine.gguf_blocks import GgufWeight, unpack
from meshnet_worker.engine.packed import UnpackableWeightError
from tests.gguf_files import random_blocks

PACKED = {number: kind for number, kind in KINDS.items() if kind.block_values > 1}
Q4_1 = KINDS[3]


def rows_of(kind: GgufKind, rows: int = 48, columns: int = 512) -> np.ndarray:
    return random_blocks(GGMLQuantizationType[kind.name], rows, columns)


def plain(rows: np.ndarray, kind: GgufKind) -> torch.Tensor:
    return torch.from_numpy(dequantize(rows, GGMLQuantizationType[kind.name]))


@pytest.mark.parametrize("kind", PACKED.values(), ids=lambda kind: kind.name)
def test_unpacked_values_are_those_of_the_formats_own_package(kind: GgufKind) -> None:
    rows = rows_of(kind)
    expected = plain(rows, kind)
    assert expected.isfinite().all()
    assert torch.equal(unpack(torch.from_numpy(rows), kind), expected)


@pytest.mark.parametrize("kind", PACKED.values(), ids=lambda kind: kind.name)
def test_a_linear_map_computes_with_the_unpacked_weight(kind: GgufKind) -> None:
    rows = rows_of(kind)
    linear = nn.Linear(512, 48)
    forward = GgufWeight(torch.from_numpy(rows), kind, torch.float32).forward_of(linear)
    given = torch.randn(2, 3, 512)
    with torch.no_grad():
        expected = nn.functional.linear(given, plain(rows, kind), linear.bias)
        torch.testing.assert_close(forward(given), expected)


def test_a_matrix_is_unpacked_in_pieces_that_make_the_same_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows, given = torch.from_numpy(rows_of(Q4_1)), torch.randn(1, 512)
    linear = nn.Linear(512, 48, bias=False)
    whole = GgufWeight(rows, Q4_1, torch.float32).forward_of(linear)(given)
    monkeypatch.setattr(gguf_blocks, "VALUES_AT_ONCE", 5 * 512)
    torch.testing.assert_close(
        GgufWeight(rows, Q4_1, torch.float32).forward_of(linear)(given), whole
    )


def test_an_embedding_unpacks_only_the_rows_that_are_asked_for() -> None:
    rows = rows_of(Q4_1)
    forward = GgufWeight(torch.from_numpy(rows), Q4_1, torch.bfloat16).forward_of(
        nn.Embedding(48, 512)
    )
    ids = torch.tensor([[4, 4, 47]])
    assert torch.equal(forward(ids), plain(rows, Q4_1)[ids].bfloat16())


def test_the_size_is_the_files_own() -> None:
    rows = torch.from_numpy(rows_of(Q4_1))
    assert GgufWeight(rows, Q4_1, torch.bfloat16).size_bytes == 48 * 512 // 32 * 20


def test_other_modules_and_other_kinds_are_refused() -> None:
    rows = torch.from_numpy(rows_of(Q4_1))
    with pytest.raises(UnpackableWeightError, match="LayerNorm is no plain linear map"):
        GgufWeight(rows, Q4_1, torch.float32).forward_of(nn.LayerNorm(512))
    with pytest.raises(UnpackableWeightError, match="F16"):
        GgufWeight(rows, KINDS[1], torch.float32)
