"""Who may ask for what: API keys, as requests show them.

Keys are read at most once in half a second, so a revoked one opens nothing soon after, on every
Tracker of the Mesh.
"""

import asyncio
import math

from aiohttp import web

from meshnet_common.edge.clock import Clock, loop_time
from meshnet_common.edge.http import ANSWER_HEADERS, bearer_token
from meshnet_common.openai.errors import invalid_api_key, model_not_allowed, rate_limited
from meshnet_tracker.key_rules import PREFIX, ApiKey, KeyBook
from meshnet_tracker.store.errors import ApiKeyError
from meshnet_tracker.store.store import Store

FRESH_SECONDS = 0.5


class Access:
    """Checks the key of each request; without `requires_key` a request needs none.

    Even then a key of ours that opens nothing is refused, and the limits of one that does hold;
    other tokens mean nothing, since many clients cannot be told to send none.
    """

    def __init__(self, store: Store, clock: Clock, *, requires_key: bool) -> None:
        self._store = store
        self._clock = clock
        self._requires_key = requires_key
        self._reading = asyncio.Lock()
        self._book = KeyBook()
        self._read_at = -math.inf

    async def holder(self, request: web.Request) -> ApiKey | None:
        """Return the key that a request shows; None if it shows none and needs none.

        Raises ApiError 401, and DatabaseUnavailableError.
        """
        token = bearer_token(request)
        if not token.startswith(PREFIX):
            if self._requires_key:
                raise invalid_api_key()
            return None
        key = (await self._keys()).find(token, self._clock.now())
        if key is None:
            raise invalid_api_key()
        return key

    async def check(self, request: web.Request, model: str) -> ApiKey | None:
        """Return the key of a request for a model; raises ApiError 401 or 403 as well."""
        key = await self.holder(request)
        if key is not None and not key.allows(model):
            raise model_not_allowed(model)
        return key

    async def count(self, request: web.Request, key: ApiKey | None) -> None:
        """Count a request of a key that has a limit, and tell in its answer how much is left.

        Raises ApiError 429 for one too many, and DatabaseUnavailableError.
        """
        if key is None or key.requests_per_minute is None:
            return
        try:
            pace = await self._store.api_keys.take(key, self._clock.now())
        except ApiKeyError as error:
            raise invalid_api_key() from error
        request[ANSWER_HEADERS] = pace.headers()
        if not pace.is_within:
            message = f"This key allows {pace.limit} requests a minute."
            raise rate_limited(message, "requests", math.ceil(pace.retry_seconds))

    async def _keys(self) -> KeyBook:
        async with self._reading:
            began = loop_time()
            if began - self._read_at >= FRESH_SECONDS:
                self._book, self._read_at = KeyBook.of(await self._store.api_keys.all()), began
            return self._book
