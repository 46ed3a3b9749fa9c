import msgspec
import pytest

from meshnet_common.protocol.bodies import SEGMENT_FILL, SEGMENT_SAMPLE
from meshnet_worker.run_commands import run_command
from meshnet_worker.sessions import SegmentError
from tests.common.builders import hops, segment, ticket
from tests.worker.builders import ROW_BYTES, hop_session

ROUTE = ticket(*hops(2, 2))


@pytest.mark.parametrize(("place", "flags"), [(1, SEGMENT_SAMPLE), (1, 0), (0, SEGMENT_SAMPLE)])
def test_only_the_tail_draws_and_only_where_a_token_is_wanted(place: int, flags: int) -> None:
    one = segment(flags=flags, token_ids=(4,))
    command = run_command(hop_session(ROUTE, place), one, place * ROW_BYTES, "float32")
    assert command.draws == (place == 1 and flags == SEGMENT_SAMPLE)


def test_a_token_that_nobody_said_how_to_draw_is_refused() -> None:
    session = hop_session(ROUTE, 1)
    session.sampling = None
    with pytest.raises(SegmentError):
        run_command(session, segment(flags=SEGMENT_SAMPLE), ROW_BYTES, "float32")


def test_the_hop_where_a_fill_ends_goes_with_it_through_the_engine() -> None:
    one = msgspec.structs.replace(segment(flags=SEGMENT_FILL), last_hop=1)
    command = run_command(hop_session(ROUTE, 1), one, ROW_BYTES, "float32")
    assert (command.flags, command.last_hop, command.draws) == (SEGMENT_FILL, 1, False)


@pytest.mark.parametrize(("hidden_bytes", "dtype"), [(ROW_BYTES - 4, "float32"), (ROW_BYTES, "f8")])
def test_rows_that_do_not_fit_are_refused(hidden_bytes: int, dtype: str) -> None:
    with pytest.raises(SegmentError):
        run_command(hop_session(ROUTE, 1), segment(), hidden_bytes, dtype)
