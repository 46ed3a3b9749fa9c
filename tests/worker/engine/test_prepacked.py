import pytest
import torch
from torch.nn import functional

from meshnet_worker.engine import prepacked as module
from meshnet_worker.engine.prepacked import prepacked

DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])


def weight_of(dtype: torch.dtype) -> torch.Tensor:
    return torch.randn((96, 64), generator=torch.Generator().manual_seed(1)).to(dtype)


@DTYPES
@torch.inference_mode()
@pytest.mark.parametrize("rows", [1, 2, 7, 64, 200])
def test_a_prepacked_map_computes_what_the_plain_one_does(dtype: torch.dtype, rows: int) -> None:
    weight, given = weight_of(dtype), torch.randn(1, rows, 64).to(dtype)
    for bias in (None, torch.randn(96).to(dtype)):
        linear_map = prepacked(weight, bias)
        assert linear_map is not None
        expected = functional.linear(given, weight, bias)
        torch.testing.assert_close(linear_map(given), expected, atol=0.1, rtol=2e-2)


def test_other_formats_stay_plain() -> None:
    assert prepacked(weight_of(torch.float16), None) is None


def test_a_kernel_that_computes_something_else_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(weight: torch.Tensor, _bias: torch.Tensor | None) -> module.LinearMap:
        return lambda rows: functional.linear(rows, weight) * float("nan")

    monkeypatch.setitem(module._PACKS, torch.float32, wrong)
    assert prepacked(weight_of(torch.float32), None) is None


def test_a_processor_without_the_kernels_instructions_keeps_the_plain_map(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def lacking(_weight: torch.Tensor, _bias: torch.Tensor | None) -> module.LinearMap:
        raise RuntimeError("bf16 path needs the cpu support")

    monkeypatch.setitem(module._PACKS, torch.float32, lacking)
    assert prepacked(weight_of(torch.float32), None) is None
