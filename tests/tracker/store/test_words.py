import msgspec

from meshnet_common.protocol.messages import Heartbeat, RoundTrip, ShardState
from meshnet_tracker.store.words import FIGURES, Known, Said
from tests.tracker.builders import TOKEN_SHA256, heartbeat, shard


def known(*shards: object, was_live: bool = True, **figures: object) -> Known:
    """What the database has of a Worker that said nothing but this."""
    said = heartbeat()
    figures = {**{name: getattr(said, name) for name in FIGURES}, "round_trips": [], **figures}
    return Known(7, 0.0, TOKEN_SHA256, was_live, figures, tuple(shards))  # type: ignore[arg-type]


def said(before: Known, body: Heartbeat) -> tuple[bool, bool, bool]:
    words = Said.of(before, body)
    return words.is_same, words.is_load_only, words.is_news


def test_the_same_words_again_are_nothing_new() -> None:
    assert said(known(shard(0, 3)), heartbeat(shard(0, 3))) == (True, True, False)


def test_other_figures_of_its_load_are_no_news() -> None:
    assert said(known(), heartbeat(sessions=3)) == (False, True, False)


def test_another_figure_beside_its_load_is_told_as_such() -> None:
    measured = msgspec.structs.replace(
        heartbeat(), round_trips=(RoundTrip(worker_id="w2", seconds=0.5),)
    )
    assert said(known(), measured) == (False, False, False)


def test_other_shards_are_news_and_more_bytes_of_them_are_not() -> None:
    before = known(shard(0, 3, ShardState.LOADING, bytes_done=1))
    more = heartbeat(shard(0, 3, ShardState.LOADING, bytes_done=2))
    assert said(before, more) == (False, False, False)
    assert said(before, heartbeat(shard(0, 3))) == (False, False, True)


def test_the_first_words_and_the_last_ones_are_news() -> None:
    assert said(known(was_live=False), heartbeat()) == (False, False, True)
    assert said(known(), heartbeat(leaving=True)) == (False, False, True)


def test_what_is_known_afterwards_is_what_was_said() -> None:
    body = heartbeat(shard(0, 3), sessions=2)
    after = Said.of(known(was_live=False), body).known_at(8)
    assert after.changed == 8
    assert said(after, body) == (True, True, False)


def test_what_was_not_measured_again_stays_as_it_was() -> None:
    before = known(link_bytes_per_sec=5e6, speeds_of="tiny", decode_tokens_per_sec_per_layer=123.0)
    assert said(before, heartbeat()) == (True, True, False)
