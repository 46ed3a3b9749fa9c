import torch
from torch.nn.functional import scaled_dot_product_attention

from meshnet_worker.engine.look import Look, written_out

PLAIN = Look(None, None, None, None)


def random(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def test_caps_and_sinks_have_no_kernel() -> None:
    assert PLAIN.is_plain
    assert Look(0.5, 16, None, None).is_plain
    assert not PLAIN._replace(softcap=1.0).is_plain
    assert not PLAIN._replace(sinks=torch.ones(4)).is_plain


def test_without_caps_and_sinks_it_is_what_the_kernel_computes() -> None:
    query, keys, values = random(4, 3, 8), random(2, 5, 8), random(2, 5, 6)
    mask = torch.ones(3, 5, dtype=torch.bool).tril(2)
    right = scaled_dot_product_attention(
        query[None], keys[None], values[None], attn_mask=mask, enable_gqa=True
    )[0]
    torch.testing.assert_close(written_out(query, keys, values, mask, PLAIN), right)


def test_many_sessions_at_once_equal_each_alone() -> None:
    query, keys, values = random(3, 4, 1, 8), random(3, 2, 5, 8), random(3, 2, 5, 6)
    mask = (torch.arange(5) < torch.tensor([[1], [3], [5]]))[:, None, None]
    look = Look(0.7, None, 2.0, random(4))
    together = written_out(query, keys, values, mask, look)
    for place in range(3):
        alone = written_out(query[place], keys[place], values[place], mask[place, 0], look)
        torch.testing.assert_close(together[place], alone)
