"""The models that can be asked for here, each once, with where they are from."""

import asyncio
from collections.abc import Mapping
from typing import Any

import msgspec
import structlog
from aiohttp import hdrs

from meshnet_common.edge.clock import SystemClock
from meshnet_common.edge.forwarding import UpstreamUnreachableError
from meshnet_common.openai.errors import ApiError
from meshnet_gateway.config.settings import Peer
from meshnet_gateway.federation.via import MAX_PASSES, VIA_HEADER, write_via
from meshnet_gateway.meshes import MeshModels, each_once
from meshnet_gateway.pages import get_page
from meshnet_gateway.services import Services

OWN = "meshnet-gateway"

_Models = list[dict[str, Any]]

_logger = structlog.get_logger()


class Catalogue:
    """Asks for lists of models and joins them: what is nearer comes first."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._began_at = int(SystemClock().now())

    async def models(self, headers: Mapping[str, str], via: tuple[str, ...]) -> _Models:
        """List all models; `via` are the Meshes that ask already.

        Raises ApiError 502 if there are only meshes and none of them answers.
        """
        settings = self._services.settings
        own = [self._own(model.id) for model in settings.models if model.endpoints]
        peers = [peer for peer in settings.peers if peer.id not in via and len(via) < MAX_PASSES]
        async with asyncio.TaskGroup() as group:
            of_peers = [group.create_task(self._of_peer(peer, headers, via)) for peer in peers]
            found = group.create_task(self._of_meshes(headers))
        lists = [found.result(), *(task.result() for task in of_peers)]
        refusals = [one for one in lists if isinstance(one, ApiError)]
        if refusals and not own and len(refusals) == len(lists):
            raise refusals[0]
        return each_once(own, *(one for one in lists if not isinstance(one, ApiError)))

    def _own(self, name: str) -> dict[str, Any]:
        return {"id": name, "object": "model", "created": self._began_at, "owned_by": OWN}

    async def _of_meshes(self, headers: Mapping[str, str]) -> _Models | ApiError:
        if not self._services.settings.meshes:
            return []
        try:
            return await self._services.registry.meshes.models(headers)
        except ApiError as error:
            return error

    async def _of_peer(
        self, peer: Peer, headers: Mapping[str, str], via: tuple[str, ...]
    ) -> _Models:
        asking = {**headers, VIA_HEADER: write_via(via, self._services.settings.mesh_id)}
        if peer.api_key is not None:
            asking[hdrs.AUTHORIZATION] = peer.api_key.bearer
        try:
            page = await get_page(self._services.session, f"{peer.base_url}/v1/models", asking)
            listed = msgspec.json.decode(page.body, type=MeshModels).data
        except (UpstreamUnreachableError, msgspec.MsgspecError, RecursionError) as error:
            _logger.warning("peer gave no list of models", peer=peer.id, reason=repr(error))
            return []
        return [
            {**model, "owned_by": peer.id} for model in listed if peer.lists(str(model.get("id")))
        ]
