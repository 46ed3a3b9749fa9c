import gc

import pytest
import torch

from meshnet_worker.engine import opaque


class Doubling:
    """A map that doubles."""

    def kernel(self, rows: torch.Tensor) -> torch.Tensor:
        return rows * 2


def test_compiled_code_calls_a_map_by_its_number() -> None:
    doubling = Doubling()
    number = opaque.number_of(doubling)
    output = torch.ops.meshnet.linear_map(torch.ones(1, 2, 3), number, 3)
    assert torch.equal(output, torch.full((1, 2, 3), 2.0))


def test_a_map_that_is_dropped_is_not_kept_alive_by_its_number() -> None:
    doubling = Doubling()
    number = opaque.number_of(doubling)
    del doubling
    gc.collect()
    with pytest.raises(KeyError):
        torch.ops.meshnet.linear_map(torch.ones(1, 2, 3), number, 3)


def test_a_tracer_learns_the_shape_of_a_map_without_running_it() -> None:
    rows = torch.ones((1, 2, 3), device="meta")
    assert torch.ops.meshnet.linear_map(rows, -1, 7).shape == (1, 2, 7)


def test_a_tracer_learns_the_shape_of_attention_without_running_it() -> None:
    query, key, value = (torch.ones((1, heads, 2, 4), device="meta") for heads in (6, 3, 3))
    output = torch.ops.meshnet.attend(query, key, value, 0, 0.5, None, None, None)
    assert output.shape == (1, 2, 6, 4)


def test_segments_belong_to_one_pass() -> None:
    with opaque.passing(("one",)):
        assert opaque.segments_now() == ("one",)
    assert opaque.segments_now() == ()


def test_operators_stand_for_the_work_while_a_pass_is_traced_only() -> None:
    with opaque.tracing():
        assert opaque.is_tracing()
    assert not opaque.is_tracing()
