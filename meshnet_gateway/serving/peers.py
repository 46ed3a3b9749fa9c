"""The Peers of this Gateway as they stand: what is under way there, and which have just failed."""

from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from meshnet_gateway.config.settings import Peer, Settings
from meshnet_gateway.federation.peers import Federation, Presence
from meshnet_gateway.serving.pulse import Pulse

COOL_SECONDS = 5.0
"""A Peer that has failed comes last for this long."""
LACKS_SECONDS = 1.0
"""One that did not know a name is not asked for it again for so long: anybody can make some up."""
MOST_LACKS = 1024


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a request needs of a Peer."""

    model: str
    presence: Presence
    via: tuple[str, ...]
    barred: frozenset[str] = frozenset()
    """Base URLs of Peers that turned out not to serve it."""


@dataclass(frozen=True, slots=True)
class PeerChoice:
    """The best Peer, if any lists the model, and whether there is nothing against it."""

    peer: Peer | None
    is_fit: bool


class Peers:
    """All of them."""

    def __init__(self, settings: Settings) -> None:
        self._under_way: Counter[str] = Counter()
        self._cooling_until: dict[str, float] = {}
        self._pulses: dict[str, Pulse] = {}
        self._lacks_until: dict[tuple[str, str], float] = {}
        self.apply(settings)

    def apply(self, settings: Settings) -> None:
        """Go by these settings from now on."""
        self.listed = settings.peers
        self._federation = Federation(settings.mesh_id, settings.peers)

    def choose(self, wanted: Wanted, resting: Collection[str], now: float) -> PeerChoice:
        """Choose the next Peer, one whose base URL is not at rest if there is any.

        Raises ApiError 508 for a request that was here before, and 404 for a model nobody lists.
        """
        unfit = {
            peer.id
            for peer in self.listed
            if peer.base_url in resting or self.is_cooling(peer, now)
        }
        barred = self._barred(wanted.model, wanted.barred, now)
        peer = self._federation.choose(wanted.model, wanted.presence, wanted.via, unfit, barred)
        return PeerChoice(peer, peer is not None and peer.id not in unfit)

    def any_fit(
        self, model: str, via: tuple[str, ...], barred: Collection[str], now: float
    ) -> bool:
        """Tell whether a Peer that nothing speaks against may have this model."""
        open_to_it = self._federation.open_to(model, via, self._barred(model, barred, now))
        return any(not self.is_cooling(peer, now) for peer in open_to_it)

    def _barred(self, model: str, urls: Collection[str], now: float) -> set[str]:
        """Name those that are not to be asked for a model: at these base URLs, or without it."""
        return {
            peer.id
            for peer in self.listed
            if peer.base_url in urls or self._lacks(peer, model, now)
        }

    @contextmanager
    def under_way(self, peer: Peer) -> Iterator[None]:
        """Count a request that a Peer answers, inside the block."""
        self._under_way[peer.id] += 1
        try:
            yield
        finally:
            self._under_way[peer.id] -= 1

    def failed(self, peer: Peer, now: float) -> None:
        self._cooling_until[peer.id] = now + COOL_SECONDS

    def lacks(self, peer: Peer, model: str, now: float) -> None:
        """Note that a Peer does not know a model."""
        self._lacks_until.pop((peer.id, model), None)
        self._lacks_until[peer.id, model] = now + LACKS_SECONDS
        if len(self._lacks_until) > MOST_LACKS:
            del self._lacks_until[next(iter(self._lacks_until))]

    def _lacks(self, peer: Peer, model: str, now: float) -> bool:
        return self._lacks_until.get((peer.id, model), now) > now

    def in_flight(self, peer: Peer) -> int:
        return self._under_way[peer.id]

    def pulse(self, peer: Peer) -> Pulse:
        """What looks at it, and its answers, have told."""
        return self._pulses.setdefault(peer.base_url, Pulse())

    def is_cooling(self, peer: Peer, now: float) -> bool:
        """Tell whether it comes last: it has just failed, or does not say anything."""
        return self.pulse(peer).is_silent or self._cooling_until.get(peer.id, now) > now
