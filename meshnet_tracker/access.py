"""Who may ask for what: API keys, as requests show them.

Keys are read about once in half a second, so a revoked one opens nothing soon after, on every
Tracker of the Mesh. One that opens nothing is looked for again, so a new one counts at once.
"""

import math
from collections.abc import Awaitable, Callable
from typing import TypeVar

from aiohttp import web

from meshnet_common.edge.clock import Clock
from meshnet_common.edge.http import bearer_token, tell_in_headers
from meshnet_common.openai.errors import (
    ApiError,
    invalid_api_key,
    model_not_allowed,
    rate_limited,
)
from meshnet_tracker.kept_reading import KeptReading
from meshnet_tracker.key_rules import PREFIX, ApiKey, KeyBook
from meshnet_tracker.store.errors import ApiKeyError
from meshnet_tracker.store.store import Store
from meshnet_tracker.token_meter import TokenMeter

FRESH_SECONDS = 0.5

Found = TypeVar("Found")

_HOLDER: web.RequestKey[ApiKey] = web.RequestKey("holder", ApiKey)


class Access:
    """Checks the key of each request; without `requires_key` a request needs none.

    Even then a key of ours that opens nothing is refused, and the limits of one that does hold;
    other tokens mean nothing, since many clients cannot be told to send none.
    """

    def __init__(self, store: Store, clock: Clock, *, requires_key: bool) -> None:
        self._store = store
        self._clock = clock
        self._requires_key = requires_key
        self._books = KeptReading(self._read, FRESH_SECONDS)
        self.tokens = TokenMeter(store, clock)

    async def holder(self, request: web.Request) -> ApiKey | None:
        """Return the key that a request shows; None if it shows none and needs none.

        Raises ApiError 401, and DatabaseUnavailableError.
        """
        return await self._key(request)

    async def check(self, request: web.Request, model: str) -> ApiKey | None:
        """Return the key of a request for a model; raises ApiError 401 or 403 as well."""
        return await self._key(request, model)

    async def enter(
        self, request: web.Request, model: str, find: Callable[[str], Awaitable[Found]]
    ) -> Found:
        """Find what a request names, and count it if its key has a limit.

        What its key does not open, or what is not found, costs nothing of the limit. Raises
        ApiError 401, 403 and 429, and what `find` raises.
        """
        key = await self.check(request, model)
        found = await find(model)
        await self._count(request, key)
        return found

    def counts_tokens(self, request: web.Request) -> bool:
        """Whether what this request costs counts for a limit of its key."""
        key = request.get(_HOLDER)
        return key is not None and key.tokens_per_minute is not None

    def spend(self, request: web.Request, tokens: int) -> None:
        """Take up what an answer has cost."""
        if tokens and self.counts_tokens(request):
            self.tokens.spent(request[_HOLDER].name, tokens)

    async def _key(self, request: web.Request, model: str | None = None) -> ApiKey | None:
        token = bearer_token(request)
        if not token.startswith(PREFIX):
            if self._requires_key:
                raise invalid_api_key()
            return None
        try:
            return self._find(await self._books.get(), token, model)
        except ApiError:
            # What was read may be older than the command that made this key.
            return self._find(await self._books.get_newer(), token, model)

    def _find(self, book: KeyBook, token: str, model: str | None) -> ApiKey:
        key = book.find(token, self._clock.now())
        if key is None:
            raise invalid_api_key()
        if model is not None and not key.allows(model):
            raise model_not_allowed(model)
        return key

    async def _count(self, request: web.Request, key: ApiKey | None) -> None:
        """Count a request of a key that has a limit, and tell in its answer how much is left.

        Raises ApiError 429 for one too many, and DatabaseUnavailableError.
        """
        if key is None or not key.is_limited:
            return
        try:
            taken = await self._store.api_keys.take(key, self._clock.now())
        except ApiKeyError as error:
            raise invalid_api_key() from error
        tell_in_headers(request, taken.headers)
        if not taken.is_counted:
            pace = taken.exceeded
            message = f"This key allows {pace.limit} {pace.kind} a minute."
            raise rate_limited(message, pace.kind, max(1, math.ceil(pace.retry_seconds)))
        request[_HOLDER] = key

    async def _read(self) -> KeyBook:
        return KeyBook.of(await self._store.api_keys.all())
