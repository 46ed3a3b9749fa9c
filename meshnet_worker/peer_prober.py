"""Measures the round trips to Peers that the Tracker asks for, one after the other."""

import asyncio
from collections.abc import Iterable

import aiohttp
import structlog

from meshnet_common.edge.clock import loop_time
from meshnet_common.errors import MeshnetError
from meshnet_common.ids import WorkerId
from meshnet_common.protocol.messages import PeerAddress
from meshnet_worker.peer_trips import PeerTrips

PROBE_SECONDS = 3.0
MOST_BYTES = 4096
"""An answer that is longer is none of a Worker's."""

log = structlog.get_logger()


class PeerSilentError(MeshnetError):
    """The Peer gives no answer of a Worker."""


class PeerProber:
    """Asks Peers whether they live, and takes the time."""

    def __init__(self, trips: PeerTrips) -> None:
        self._trips = trips
        self._asked = asyncio.Event()

    def ask(self, peers: Iterable[PeerAddress]) -> None:
        """Have these Peers measured, one by one."""
        self._trips.ask(peers)
        self._asked.set()

    async def run(self) -> None:
        """Measure for ever."""
        while True:
            await self._asked.wait()
            self._asked.clear()
            while (peer := self._trips.next_peer()) is not None:
                try:
                    seconds = await round_trip_seconds(peer.url)
                except PeerSilentError as error:
                    log.info("peer not measured", peer=peer.worker_id, reason=str(error))
                else:
                    self._trips.measured(WorkerId(peer.worker_id), seconds, loop_time())


async def round_trip_seconds(url: str) -> float:
    """Measure one question and its answer; raises PeerSilentError.

    The first one opens the connection, so the second one counts.
    """
    connector = aiohttp.TCPConnector(limit=1)
    try:
        async with (
            asyncio.timeout(PROBE_SECONDS),
            aiohttp.ClientSession(connector=connector) as session,
        ):
            await _ask(session, url)
            began = loop_time()
            await _ask(session, url)
            return loop_time() - began
    except TimeoutError as error:
        raise PeerSilentError(f"It did not answer for {PROBE_SECONDS:.0f} s.") from error
    except (aiohttp.ClientError, OSError, ValueError) as error:
        raise PeerSilentError(f"{type(error).__name__}.") from error


async def _ask(session: aiohttp.ClientSession, url: str) -> None:
    async with session.get(f"{url.rstrip('/')}/healthz", allow_redirects=False) as answer:
        size = 0
        while data := await answer.content.read(MOST_BYTES):
            size += len(data)
            if size > MOST_BYTES:
                raise PeerSilentError("Its answer is too long.")
