from hypothesis import given
from hypothesis import strategies as st

from meshnet_common.weights.headers import PlacedTensor, TensorEntry
from meshnet_worker.weights.layout import Part, Piece
from meshnet_worker.weights.planning import GAP_BYTES, FilePlan, Wanted, wanted_of


def part_of(*places: tuple[int, int], file: str = "f", name: str = "p") -> Part:
    pieces = tuple(
        Piece(file, PlacedTensor(TensorEntry(f"t{start}", "U8", (end - start,)), start, end))
        for start, end in places
    )
    return Part.of(name, pieces)


def test_what_is_held_is_not_wanted_again() -> None:
    part = part_of((100, 110), (200, 220))
    begin = len(part.header)
    assert list(wanted_of(part, "f", begin)) == [Wanted(100, 110, "p"), Wanted(200, 220, "p")]
    assert list(wanted_of(part, "f", begin + 4)) == [Wanted(104, 110, "p"), Wanted(200, 220, "p")]
    assert list(wanted_of(part, "f", begin + 10)) == [Wanted(200, 220, "p")]
    assert list(wanted_of(part, "f", part.size_bytes)) == []
    assert list(wanted_of(part, "another", begin)) == []


def test_tensors_that_follow_each_other_are_one_run() -> None:
    part = part_of((100, 110), (110, 130), (140, 150))
    runs = [Wanted(100, 130, "p"), Wanted(140, 150, "p")]
    assert list(wanted_of(part, "f", len(part.header))) == runs


def test_small_gaps_are_read_over_and_large_ones_are_not() -> None:
    near, far = 20 + GAP_BYTES, 30 + 2 * GAP_BYTES
    plan = FilePlan(
        [Wanted(10, 20, "a"), Wanted(near, near + 5, "b"), Wanted(far + 5, far + 9, "c")]
    )
    assert plan.next_extent() == (10, near + 5)
    list(plan.feed(10, bytes(near - 5)))
    assert plan.next_extent() == (far + 5, far + 9)


def test_nothing_wanted_is_no_extent() -> None:
    assert FilePlan([]).next_extent() is None


@given(st.data())
def test_however_bytes_come_each_part_gets_its_own_in_order(data: st.DataObject) -> None:
    content = data.draw(st.binary(min_size=40, max_size=200))
    cuts = sorted(data.draw(st.sets(st.integers(0, len(content)), max_size=12)))
    ranges = list(zip(cuts[::2], cuts[1::2], strict=False))
    wanted = [Wanted(a, b, f"p{n % 3}") for n, (a, b) in enumerate(ranges)]
    plan = FilePlan(wanted)
    got: dict[str, bytes] = {}
    while (extent := plan.next_extent()) is not None:
        # The server may begin at the front, and may stop anywhere.
        start = data.draw(st.sampled_from([0, extent[0]]))
        stop = data.draw(st.integers(extent[0] + 1, len(content)))
        while start < stop:
            end = data.draw(st.integers(start + 1, stop))
            for part, piece in plan.feed(start, content[start:end]):
                got[part] = got.get(part, b"") + bytes(piece)
            start = end
    expected: dict[str, bytes] = {}
    for run in wanted:
        expected[run.part] = expected.get(run.part, b"") + content[run.start : run.end]
    assert got == {part: held for part, held in expected.items() if held}
    assert plan.received_bytes == sum(b - a for a, b in ranges)
