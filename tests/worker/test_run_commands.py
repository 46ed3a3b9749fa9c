import msgspec
import pytest

from meshnet_common.protocol.bodies import SEGMENT_FILL, SEGMENT_SAMPLE
from meshnet_worker.engine_port import Draw
from meshnet_worker.run_commands import run_command
from meshnet_worker.sessions import SegmentError
from tests.common.builders import hops, segment, ticket
from tests.worker.builders import GREEDY, ROW_BYTES, hop_session

ROUTE = ticket(*hops(2, 2))


def test_the_tail_draws_as_its_session_says() -> None:
    session = hop_session(ROUTE, 1)
    session.sampling = GREEDY
    command = run_command(session, segment(flags=SEGMENT_SAMPLE), ROW_BYTES, "float32")
    assert command.draw == Draw(GREEDY.temperature, GREEDY.top_p, GREEDY.seed)


def test_the_hop_where_a_fill_ends_goes_with_it_through_the_engine() -> None:
    one = msgspec.structs.replace(segment(flags=SEGMENT_FILL), last_hop=1)
    command = run_command(hop_session(ROUTE, 1), one, ROW_BYTES, "float32")
    assert (command.flags, command.last_hop, command.draw) == (SEGMENT_FILL, 1, None)


@pytest.mark.parametrize(("hidden_bytes", "dtype"), [(ROW_BYTES - 4, "float32"), (ROW_BYTES, "f8")])
def test_rows_that_do_not_fit_are_refused(hidden_bytes: int, dtype: str) -> None:
    with pytest.raises(SegmentError):
        run_command(hop_session(ROUTE, 1), segment(), hidden_bytes, dtype)
