"""What every request of this Gateway needs, and how that changes when settings are read anew."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import aiohttp

from meshnet_common.edge.clock import Clock
from meshnet_gateway.config.settings import Settings
from meshnet_gateway.meshes import Meshes
from meshnet_gateway.serving.admission import Admission
from meshnet_gateway.serving.bodies import Bodies
from meshnet_gateway.serving.embedder import Embedder, Sides
from meshnet_gateway.serving.peers import Peers
from meshnet_gateway.serving.registry import Registry
from meshnet_gateway.serving.watch import EndpointWatch

Draw = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Services:
    """The one place where a handler finds them; times are those of a steady clock."""

    session: aiohttp.ClientSession
    steady: Clock
    registry: Registry
    admission: Admission
    watch: EndpointWatch
    peers: Peers
    bodies: Bodies
    embedders: dict[str, Embedder] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        session: aiohttp.ClientSession,
        settings: Settings,
        steady: Clock,
        draw: Draw = random.random,
    ) -> "Services":
        """Make them for these settings."""
        registry = Registry(settings, Meshes(session, settings.meshes, steady), draw)
        admission = Admission(steady, settings.max_waiting)
        peers, bodies = Peers(settings), Bodies(settings.max_total_body_bytes)
        watch = EndpointWatch(session, registry, admission, peers)
        return cls(session, steady, registry, admission, watch, peers, bodies)

    @property
    def settings(self) -> Settings:
        """As they are now: they may be read anew at any time."""
        return self.registry.settings

    def apply(self, settings: Settings) -> None:
        """Go by these settings from now on; requests on their way and in line lose nothing."""
        for name in [*self.embedders]:
            if self.settings.model(name) != settings.model(name):
                # What it has learnt is of another embedder.
                del self.embedders[name]
        self.registry.apply(settings, Meshes(self.session, settings.meshes, self.steady))
        self.admission.max_waiting = settings.max_waiting
        self.bodies.most_bytes = settings.max_total_body_bytes
        self.peers.apply(settings)
        self.admission.turn_away_lost()
        self.admission.pump()

    def sides_of(self, name: str) -> Sides | None:
        """Find the two sides of an embedding model that has a fallback."""
        model = self.settings.model(name)
        if model is None or model.fallback is None:
            return None
        primary, fallback = self.registry.sides(name)
        embedder = self.embedders.get(name)
        if embedder is None:
            embedder = Embedder(model.dimensions, self.registry.draw)
            self.embedders[name] = embedder
        return Sides(embedder, primary, fallback)

    async def is_ready(self) -> bool:
        """Tell whether anybody could answer a request."""
        now = self.steady.now()
        if any(served.is_resident(now) for served in self.registry.configured):
            return True
        return await self.registry.meshes.ready()
