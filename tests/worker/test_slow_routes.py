"""Sessions whose activations a slow link holds up: their Head Workers hear that they live."""

from meshnet_common.ids import WorkerId
from meshnet_common.protocol.bodies import OpenBody, ProgressBody
from meshnet_common.protocol.tickets import RouteTicket
from tests.common.builders import hop, ticket, token_of
from tests.worker.builders import RecordingRoom
from tests.worker.running import RunningWorker, running_workers

HEAD = WorkerId("w0")


def signs(worker: RunningWorker) -> list[ProgressBody]:
    return [body for body in worker.heard if isinstance(body, ProgressBody)]


def opened(worker: RunningWorker, claims: RouteTicket, *, forwarded: bool = False) -> None:
    outlet = (lambda _body: None) if forwarded else None
    body = OpenBody(ticket=token_of(claims), max_positions=10)
    worker.admission.open(claims, body, outlet)


async def test_the_head_of_a_session_that_a_slow_link_holds_up_hears_that_it_lives() -> None:
    async with running_workers(RecordingRoom("w0"), RecordingRoom("w1")) as (head, middle):
        hops = (head.hop(0, 1), middle.hop(1, 2), hop("w9", 2, 4))
        opened(middle, ticket(*hops))
        opened(middle, ticket(*hops, session_id="s2"), forwarded=True)
        tell = middle.links._on_waiting
        assert tell is not None
        tell(["unknown", "s2", "s1"])
        await head.changes.until(lambda: signs(head))
        assert signs(head) == [ProgressBody(session_id="s1", epoch=(1, 0), position=0, waits=True)]
