import torch

from meshnet_worker.engine.data_free import data_free


def asked() -> torch.Tensor:
    return torch.zeros((3, 4), dtype=torch.bool, device="meta")


def test_every_token_goes_everywhere() -> None:
    with data_free():
        rows, columns = torch.where(asked())
        assert asked().nonzero().shape == (12, 2)
    assert (len(rows), len(columns)) == (12, 12)


def test_single_values_are_one() -> None:
    with data_free():
        assert bool(asked().any())
        assert torch.zeros((), device="meta").item() == 1.0
        assert torch.zeros(3, device="meta").tolist() == [1.0, 1.0, 1.0]
        assert torch.bincount(torch.zeros(5, dtype=torch.long, device="meta")).shape == (1,)


def test_grouped_products_have_a_shape_in_every_dtype() -> None:
    rows = torch.zeros((5, 16), device="meta", requires_grad=True)
    weights = torch.zeros((2, 16, 24), device="meta")
    ends = torch.zeros(2, dtype=torch.int32, device="meta")
    with data_free():
        product = torch.nn.functional.grouped_mm(rows, weights, offs=ends)
    assert product.shape == (5, 24)
    assert product.requires_grad


def test_real_tensors_are_left_alone() -> None:
    with data_free():
        assert torch.tensor([0, 3, 0]).nonzero().tolist() == [[1]]
