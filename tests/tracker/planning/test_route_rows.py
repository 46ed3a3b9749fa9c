from hypothesis import given
from hypothesis import strategies as st

from meshnet_common.ids import WorkerId
from meshnet_common.shard_range import ShardRange
from meshnet_tracker.planning.route_rows import Row, Rows, Shard, bits_of
from tests.tracker.planning.meshes import worker

NAMES = st.sampled_from("abcde")
CHANGES = st.lists(
    st.tuples(
        st.sampled_from(("put", "remove", "change", "set")),
        NAMES,
        st.sampled_from(((0, 2), (0, 4), (2, 4))),
        st.sampled_from(("", "eu", "us")),
        st.sampled_from((0.5, 1.0, 2.0)),
    ),
    max_size=30,
)


def shard(name: str, start: int, end: int, locality: str = "", seconds: float = 1.0) -> Shard:
    view = worker(name, 8)
    run = ShardRange(start, end)
    return Shard(view.worker_id, view, run, seconds, 0, locality, {}, ())


def names(rows: list[Row]) -> list[list[str]]:
    return [[one.worker_id for one in row] for row in rows]


def by_seconds(rows: Rows) -> list[list[str]]:
    return names([row for _, _, row in rows.by_seconds])


def rows_of(shards: dict[str, Shard]) -> Rows:
    rows = Rows()
    for _, one in sorted(shards.items()):
        rows.put(one)
    return rows


def test_layers_as_bits_are_those_of_the_run() -> None:
    assert bits_of(ShardRange(1, 4)) == 0b1110


def test_rows_are_in_the_order_of_their_ranges_and_in_that_of_the_quickest_of_each() -> None:
    rows = Rows()
    for one in (
        shard("a", 2, 4, seconds=0.5),
        shard("b", 0, 4, "us", seconds=1.0),
        shard("c", 0, 4, "eu", seconds=3.0),
        shard("d", 0, 4, "eu", seconds=2.0),
    ):
        rows.put(one)
    assert names(rows.in_order) == [["d", "c"], ["b"], ["a"]]
    assert by_seconds(rows) == [["a"], ["b"], ["d", "c"]]
    assert rows.bits_by_locality() == {"": 0b1100, "us": 0b1111, "eu": 0b1111}


@given(CHANGES)
def test_rows_that_changed_are_as_if_they_were_made_anew(
    changes: list[tuple[str, str, tuple[int, int], str, float]],
) -> None:
    rows, known = Rows(), dict[str, Shard]()
    for kind, name, (start, end), locality, seconds in changes:
        old = known.get(name)
        if old is None:
            known[name] = shard(name, start, end, locality, seconds)
            rows.put(known[name])
        elif kind == "remove":
            rows.remove(known.pop(name))
        elif kind == "set":
            rows.set_seconds(old, seconds)
        else:
            known[name] = shard(name, old.run.start, old.run.end, old.locality, seconds)
            rows.change(old, known[name])
        anew = rows_of(known)
        assert names(rows.in_order) == names(anew.in_order)
        assert by_seconds(rows) == by_seconds(anew)
        assert rows.bits_by_locality() == anew.bits_by_locality()
    assert {one.worker_id for row in rows.in_order for one in row} == set(map(WorkerId, known))
