"""Lets answers of this Head Worker go on at another one, where there is one."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence, Sized
from dataclasses import dataclass

import structlog

from meshnet_common.errors import MeshnetError
from meshnet_worker.shards import ShardTable

ASK_SECONDS = 2.0

log = structlog.get_logger()


@dataclass(slots=True)
class HandingOver:
    """Asks for other Head Workers; `url` is under which the Tracker knows this one."""

    shards: ShardTable
    answers: Sized
    """Those of which this is the Head Worker."""
    move_answers: Callable[[], None]
    find_heads: Callable[[str], Awaitable[tuple[str, ...]]]
    """Asks the Tracker for the URLs of a model's Head Workers."""
    url: str = ""

    def begun_models(self) -> list[str]:
        """The models of which this Worker has the first Layer ready."""
        return [
            shard.preset.public_name(shard.variant.quantization)
            for shard in self.shards
            if shard.ready is not None and shard.ready.start == 0
        ]

    async def offer(self, models: Sequence[str]) -> None:
        """Move all answers if somebody else can be the Head Worker of every one of these models."""
        if not len(self.answers) or not models:
            return
        try:
            async with asyncio.timeout(ASK_SECONDS):
                found = [await self.find_heads(name) for name in models]
        except (MeshnetError, TimeoutError) as error:
            log.info("nobody to hand over to is known", reason=str(error))
            return
        if all({url.rstrip("/") for url in urls} - {self.url.rstrip("/")} for urls in found):
            self.move_answers()
