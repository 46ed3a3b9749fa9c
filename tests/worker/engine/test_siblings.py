import torch
from torch import nn

from meshnet_worker.engine.arena import allocate_together
from meshnet_worker.engine.siblings import join_where_stacked, part, prepack, watched_linears


class Layer(nn.Module):
    """Two maps that read the same input, and one that reads theirs."""

    def __init__(self, *, has_bias: bool = False) -> None:
        super().__init__()
        self.first = nn.Linear(16, 32, bias=has_bias)
        self.second = nn.Linear(16, 48, bias=has_bias)
        self.last = nn.Linear(80, 16, bias=has_bias)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        joined = torch.cat((self.first(rows), self.second(rows)), dim=-1)
        output: torch.Tensor = self.last(joined)
        return output


def stacked_layer(*, has_bias: bool = False) -> Layer:
    """A Layer whose first two maps lie side by side in one allocation."""
    layer = Layer(has_bias=has_bias)
    kinds = ("weight", "bias") if has_bias else ("weight",)
    owned = [(module, kind) for kind in kinds for module in (layer.first, layer.second)]
    shapes = [getattr(module, kind).shape for module, kind in owned]
    tensors = allocate_together(shapes, torch.float32, torch.device("cpu"))
    for (module, kind), tensor in zip(owned, tensors, strict=True):
        tensor.copy_(getattr(module, kind).detach())
        setattr(module, kind, nn.Parameter(tensor, requires_grad=False))
    return layer


@torch.inference_mode()
def test_maps_that_read_the_same_input_are_siblings() -> None:
    layer = Layer()
    with watched_linears([layer]) as found:
        layer(torch.ones(1, 16))
    assert found == [(layer.first, layer.second), (layer.last,)]


@torch.inference_mode()
def test_a_map_that_runs_twice_on_the_same_input_is_left_alone() -> None:
    layer = Layer()
    rows = torch.ones(1, 16)
    with watched_linears([layer]) as found:
        layer(rows)
        layer(rows)
    assert found == [(layer.last,), (layer.last,)]


@torch.inference_mode()
def test_joined_siblings_compute_what_each_of_them_did() -> None:
    for has_bias in (False, True):
        layer = stacked_layer(has_bias=has_bias)
        rows = torch.randn(1, 3, 16)
        alone = layer(rows)

        join_where_stacked((layer.first, layer.second))

        torch.testing.assert_close(layer(rows), alone)


@torch.inference_mode()
def test_a_joined_sibling_computes_alone_for_another_input() -> None:
    layer = stacked_layer()
    rows, others = torch.randn(1, 16), torch.randn(1, 16)
    alone = layer.second(others)
    join_where_stacked((layer.first, layer.second))

    layer.first(rows)

    torch.testing.assert_close(layer.second(others), alone)


@torch.inference_mode()
def test_siblings_that_do_not_lie_side_by_side_stay_alone() -> None:
    layer = Layer()
    join_where_stacked((layer.first, layer.second))
    assert "forward" not in vars(layer.first)


@torch.inference_mode()
def test_parted_siblings_hold_no_stacked_weight() -> None:
    layer = stacked_layer()
    rows = torch.randn(1, 16)
    alone = layer(rows)
    join_where_stacked((layer.first, layer.second))

    part((layer.first, layer.second))

    assert "forward" not in vars(layer.first)
    torch.testing.assert_close(layer(rows), alone)


@torch.inference_mode()
def test_prepacked_siblings_compute_what_each_of_them_did() -> None:
    for has_bias in (False, True):
        layer = stacked_layer(has_bias=has_bias)
        rows = torch.randn(1, 3, 16)
        alone = layer(rows)
        siblings = (layer.first, layer.second)
        packed = prepack(siblings)
        assert [weight.size_bytes for weight in packed] == [4 * 16 * 32, 4 * 16 * 48]

        for module, weight in zip(siblings, packed, strict=True):
            vars(module)["forward"] = weight.forward_of(module)

        torch.testing.assert_close(layer(rows), alone)


@torch.inference_mode()
def test_siblings_in_a_format_without_a_faster_layout_are_not_prepacked() -> None:
    layer = Layer().half()
    assert prepack((layer.last,)) == ()
