from meshnet_common.protocol.bodies import CloseBody, OpenBody
from meshnet_worker.transport import underway
from meshnet_worker.transport.underway import (
    Lowest,
    Part,
    Parts,
    Underway,
    outdated_by,
    parts_of,
)
from tests.common.builders import activations, segment
from tests.worker.transport.ends import numbered


def parts(*session_ids: str) -> Parts:
    return tuple(Part(session_id, (1, 0)) for session_id in session_ids)


def since(link: Underway, before: float = 100.0) -> list[str]:
    return list(link.sessions(before))


def test_activations_are_of_the_sessions_of_their_segments() -> None:
    frame = activations(segment(epoch=(2, 1)), segment(session_id="s2"))
    assert parts_of(frame) == (("s1", (2, 1)), ("s2", (1, 0)))
    assert parts_of(numbered(1)) == ()


def test_activations_outdate_those_of_a_lower_epoch_and_a_close_also_its_own() -> None:
    assert outdated_by(activations(segment(epoch=(2, 1)))) == (("s1", (2, 1)),)
    assert outdated_by(CloseBody(session_id="s1", epoch=(2, 1))) == (("s1", (2, 2)),)
    assert outdated_by(OpenBody(ticket="t", max_positions=1)) == ()


def test_what_was_written_is_on_its_way_until_a_ping_after_it_is_answered() -> None:
    link = Underway()
    link.write(parts("s1"), 1.0)
    link.ask(7)
    link.write(parts("s2", "s3"), 2.0)
    link.ask(8)
    link.write(parts("s4"), 3.0)
    assert since(link) == ["s1", "s2", "s3", "s4"]
    link.answer(7)
    assert since(link) == ["s2", "s3", "s4"]
    link.answer(8)
    assert since(link) == ["s4"]


def test_a_later_answer_stands_for_the_earlier_ones() -> None:
    link = Underway()
    for nonce, name in enumerate(("s1", "s2")):
        link.write(parts(name), 1.0)
        link.ask(nonce)
    link.answer(1)
    assert since(link) == []
    link.write(parts("s3"), 1.0)
    link.answer(0)
    assert since(link) == ["s3"]


def test_an_answer_to_no_ping_says_nothing() -> None:
    link = Underway()
    link.write(parts("s1"), 1.0)
    link.ask(1)
    link.answer(5)
    assert since(link) == ["s1"]


def test_only_what_is_on_its_way_for_long_counts() -> None:
    link = Underway()
    link.write(parts("s1"), 1.0)
    link.write(parts("s2"), 2.0)
    assert since(link, before=1.5) == ["s1"]


def test_a_peer_that_never_answers_costs_little_memory() -> None:
    link = Underway()
    for nonce in range(3 * underway.MOST_REMEMBERED):
        link.write(parts("s1"), 1.0)
        link.write((), 1.0)
        link.ask(nonce)
    assert len(link._written) == len(link._asked) == underway.MOST_REMEMBERED


def test_only_a_session_with_older_activations_in_a_queue_is_looked_for() -> None:
    lowest = Lowest()
    lowest.add((Part("s1", (2, 0)), Part("s1", (1, 5))))
    assert lowest.may_be_below(Part("s1", (1, 6)))
    assert not lowest.may_be_below(Part("s1", (1, 5)))
    assert not lowest.may_be_below(Part("s2", (9, 9)))


def test_a_session_is_looked_for_once_in_an_epoch() -> None:
    lowest = Lowest()
    lowest.add(parts("s1"))
    lowest.lift(Part("s1", (2, 0)))
    lowest.lift(Part("s2", (2, 0)))
    assert not lowest.may_be_below(Part("s1", (2, 0)))
    assert lowest.may_be_below(Part("s1", (2, 1)))


def test_a_session_that_has_left_a_queue_is_forgotten() -> None:
    lowest = Lowest()
    lowest.add(parts("s1", "s2", "s1"))
    lowest.remove(parts("s1", "s2"))
    assert len(lowest) == 1
    lowest.remove(parts("s1"))
    assert len(lowest) == 0
    lowest.lift(Part("s1", (2, 0)))
    assert not lowest.may_be_below(Part("s1", (9, 0)))
