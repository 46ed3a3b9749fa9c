from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from meshnet_worker.engine.attention import FlatSegment, attend
from meshnet_worker.engine.kv import SessionKv

HEADS, KV_HEADS, SIZE, VALUE_SIZE = 4, 2, 8, 6
LAYER: Any = SimpleNamespace(layer_idx=3)


def random(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


class Tokens:
    """Queries, keys and values of one Session from its first position on."""

    def __init__(self, count: int) -> None:
        self.query = random(HEADS, count, SIZE)
        self.key = random(KV_HEADS, count, SIZE)
        self.value = random(KV_HEADS, count, VALUE_SIZE)


def plain(tokens: Tokens, **look: Any) -> torch.Tensor:
    """Attention as its definition says, position by position: `[tokens, heads, value size]`."""
    rows = []
    for position in range(tokens.query.shape[1]):
        window = look.get("sliding_window") or position + 1
        seen = slice(max(0, position + 1 - window), position + 1)
        rows.append(
            torch.stack([_look(tokens, head, position, seen, look) for head in range(HEADS)])
        )
    return torch.stack(rows)


def _look(
    tokens: Tokens, head: int, position: int, seen: slice, look: dict[str, Any]
) -> torch.Tensor:
    kv_head = head // (HEADS // KV_HEADS)
    scores = tokens.key[kv_head, seen] @ tokens.query[head, position]
    scores = scores * look.get("scaling", SIZE**-0.5)
    if softcap := look.get("softcap"):
        scores = softcap * torch.tanh(scores / softcap)
    if (sinks := look.get("s_aux")) is not None:
        scores = torch.cat((scores, sinks[head : head + 1]))
    weights = torch.softmax(scores, dim=0)[: seen.stop - seen.start]
    return weights @ tokens.value[kv_head, seen]


def kv_of(positions: int) -> SessionKv:
    return SessionKv.alone(positions, (LAYER.layer_idx,))


def run_in_chunks(tokens: Tokens, sizes: list[int], **look: Any) -> torch.Tensor:
    kv = kv_of(tokens.query.shape[1])
    outputs, position = [], 0
    for size in sizes:
        own = slice(position, position + size)
        segment = FlatSegment(kv, 0, size, position)
        outputs.append(_attend(tokens, own, (segment,), **look))
        position += size
    return torch.cat(outputs)


def _attend(
    tokens: Tokens, own: slice, segments: tuple[FlatSegment, ...], **look: Any
) -> torch.Tensor:
    query, key, value = (
        part[:, own].unsqueeze(0) for part in (tokens.query, tokens.key, tokens.value)
    )
    output, weights = attend(LAYER, query, key, value, None, flat_segments=segments, **look)
    assert weights is None
    return output[0]


@given(
    sizes=st.lists(st.integers(1, 6), min_size=1, max_size=5),
    window=st.none() | st.integers(1, 20),
    softcap=st.none() | st.just(2.0),
    has_sinks=st.booleans(),
    scaling=st.none() | st.just(0.7),
)
@settings(max_examples=40)
def test_it_attends_as_the_definition_says_in_any_chunking(
    sizes: list[int],
    window: int | None,
    softcap: float | None,
    has_sinks: bool,
    scaling: float | None,
) -> None:
    tokens = Tokens(sum(sizes))
    look: dict[str, Any] = {"sliding_window": window, "softcap": softcap}
    look |= {"s_aux": random(HEADS)} if has_sinks else {}
    look |= {"scaling": scaling} if scaling else {}
    output = run_in_chunks(tokens, sizes, **look)
    torch.testing.assert_close(output, plain(tokens, **look), rtol=0, atol=1e-5)


def test_sessions_of_one_batch_do_not_see_each_other() -> None:
    tokens = Tokens(7)
    segments = FlatSegment(kv_of(4), 0, 4, 0), FlatSegment(kv_of(3), 4, 3, 0)
    output = _attend(tokens, slice(0, 7), segments)
    second = Tokens(0)
    second.query, second.key, second.value = (
        part[:, 4:] for part in (tokens.query, tokens.key, tokens.value)
    )
    torch.testing.assert_close(output[4:], plain(second), rtol=0, atol=1e-5)
    assert not torch.allclose(output[4:], plain(tokens)[4:], atol=1e-3)


def test_a_mask_is_causal_and_made_once() -> None:
    segment = FlatSegment(kv_of(5), 0, 2, 3)
    mask = segment.mask(None, torch.device("cpu"))
    assert mask.tolist() == [[True] * 4 + [False], [True] * 5]
    assert segment.mask(None, torch.device("cpu")) is mask


def test_a_window_masks_what_lies_before_it() -> None:
    mask = FlatSegment(kv_of(5), 0, 2, 3).mask(2, torch.device("cpu"))
    assert mask.tolist() == [[False, False, True, True, False], [False, False, False, True, True]]


def test_a_pass_on_the_meta_device_gives_only_shapes() -> None:
    query, value = (torch.empty(1, heads, 5, SIZE, device="meta") for heads in (HEADS, KV_HEADS))
    output, _ = attend(LAYER, query, value, value, None)
    assert output.shape == (1, 5, HEADS, SIZE)


def test_a_segment_beyond_its_reservation_is_refused() -> None:
    with pytest.raises(ValueError, match="reserved"):
        _attend(Tokens(4), slice(0, 4), (FlatSegment(kv_of(3), 0, 4, 0),))
