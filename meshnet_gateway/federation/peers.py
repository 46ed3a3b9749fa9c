"""Decides where a request is answered: here if the model is loaded, at a Peer, or loaded here.

Values in, values out: whether a Peer is fit is found out elsewhere.
"""

from collections.abc import Collection
from enum import Enum, auto

from meshnet_common.openai.errors import model_not_found
from meshnet_gateway.config.settings import Peer
from meshnet_gateway.federation.shares import Shares
from meshnet_gateway.federation.via import MAX_PASSES, check_via, federation_loop


class Presence(Enum):
    """How near a model is to being answered by this Gateway's own meshes and Endpoints."""

    RESIDENT = auto()
    LOADABLE = auto()
    UNKNOWN = auto()


class Federation:
    """The Peers of this Mesh, and whose turn it is among equals."""

    def __init__(self, mesh_id: str, peers: tuple[Peer, ...]) -> None:
        self._mesh_id = mesh_id
        self._peers = peers
        self._shares = Shares()

    def choose(
        self,
        model: str,
        presence: Presence,
        via: tuple[str, ...],
        unfit: Collection[str] = (),
        barred: Collection[str] = (),
    ) -> Peer | None:
        """Choose the Peer that gets a request; None means that it is answered here.

        `unfit` are ids of Peers that come last, since a cold one is better than none, `barred` of
        those that do not serve it, whatever they list. Raises ApiError: `federation_loop` where a
        Peer that may have the model must not be asked, or 404 for one that nobody has: neither this
        Mesh, nor a Peer besides those that asked us.
        """
        check_via(via, self._mesh_id)
        if presence is Presence.RESIDENT:
            return None
        if open_to_it := self.open_to(model, via, barred):
            return self._next_of(open_to_it, unfit)
        if presence is Presence.LOADABLE:
            return None
        # That a Mesh passed it on says that it has nothing, where nobody had named this model.
        listing = self._listing(model, barred)
        if any(peer.id not in via or model in peer.models for peer in listing):
            raise federation_loop(f"No Mesh is left that could answer for `{model}`.", via)
        raise model_not_found(model)

    def open_to(self, model: str, via: tuple[str, ...], barred: Collection[str] = ()) -> list[Peer]:
        """List the Peers that a request that came this way may be passed on to."""
        if len(via) >= MAX_PASSES:
            return []
        return [peer for peer in self._listing(model, barred) if peer.id not in via]

    def _listing(self, model: str, barred: Collection[str]) -> list[Peer]:
        return [peer for peer in self._peers if peer.lists(model) and peer.id not in barred]

    def _next_of(self, peers: list[Peer], unfit: Collection[str]) -> Peer:
        fit = [peer for peer in peers if peer.id not in unfit] or peers
        first = min(peer.priority for peer in fit)
        equals = {peer.id: peer for peer in fit if peer.priority == first}
        return equals[self._shares.choose({peer.id: peer.weight for peer in equals.values()})]
