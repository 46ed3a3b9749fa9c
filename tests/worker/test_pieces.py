from itertools import pairwise

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from meshnet_common.presets import Variant
from meshnet_common.shard_range import ShardRange
from meshnet_worker.pieces import LEAST_PIECE_BYTES, PIECE_SECONDS, Pieces
from tests.common.builders import variant

LAYER = LEAST_PIECE_BYTES


def sized(layer_bytes: int) -> Variant:
    return msgspec.structs.replace(
        variant(), layer_bytes=(layer_bytes,) * 12, embedding_bytes=0, head_bytes=0
    )


BIG = sized(LAYER)


def loaded(pieces: Pieces, ready: ShardRange | None, bytes_per_second: float) -> list[ShardRange]:
    """Load all of it, over a line of that speed."""
    done, now = [], 0.0
    while pieces.left is not None:
        piece = pieces.next(ready, now)
        now += BIG.range_bytes(piece) / bytes_per_second
        pieces.took(piece, 2 * BIG.range_bytes(piece), now)
        ready = ready.union(piece) if ready else piece
        done.append(piece)
    return done


def test_a_small_load_is_one_piece() -> None:
    assert Pieces(sized(LAYER // 12), ShardRange(2, 6), 0.0).next(None, 0.0) == ShardRange(2, 6)


def test_a_piece_is_what_comes_in_its_time() -> None:
    fast = Pieces(BIG, ShardRange(2, 12), 3 * LAYER / PIECE_SECONDS)
    assert fast.next(None, 0.0) == ShardRange(2, 5)


def test_where_no_speed_is_known_the_first_piece_tells_it() -> None:
    done = loaded(Pieces(BIG, ShardRange(2, 12), 0.0), None, 4 * LAYER / PIECE_SECONDS)
    assert done == [ShardRange(2, 3), ShardRange(3, 7), ShardRange(7, 11), ShardRange(11, 12)]


def test_what_is_loaded_lies_beside_what_is_ready() -> None:
    done = loaded(Pieces(BIG, ShardRange(2, 5), 1.0), ShardRange(5, 8), LAYER / PIECE_SECONDS)
    assert done == [ShardRange(4, 5), ShardRange(3, 4), ShardRange(2, 3)]


@given(st.lists(st.integers(0, 4), min_size=4, max_size=40))
def test_progress_never_goes_back_and_ends_at_its_total(steps: list[int]) -> None:
    pieces, told = Pieces(BIG, ShardRange(0, 12), LAYER / PIECE_SECONDS), []
    for step in steps:
        if pieces.left is None:
            break
        piece = pieces.next(None, 0.0)
        size = 2 * BIG.range_bytes(piece)
        told += [pieces.progress(size * part // 4, size) for part in range(step + 1)]
        pieces.took(piece, size, 1.0)
    assert all(before[0] <= after[0] for before, after in pairwise(told))
    assert {total for _, total in told} == {2 * BIG.range_bytes(ShardRange(0, 12))}
