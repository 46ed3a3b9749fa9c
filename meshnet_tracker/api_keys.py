"""What the `key` commands do: make, list and revoke API keys, and say in lines what came of it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from meshnet_tracker.key_rules import (
    MAX_NAME_CHARACTERS,
    SHOWN_CHARACTERS,
    ApiKey,
    is_key_name,
    new_key,
)
from meshnet_tracker.models import served_models
from meshnet_tracker.opening import open_store
from meshnet_tracker.store.errors import ApiKeyError
from meshnet_tracker.store.store import Store
from meshnet_tracker.tables import json_lines, table
from meshnet_tracker.tokens import token_sha256

DAY_SECONDS = 86400.0


@dataclass(frozen=True, slots=True)
class KeyLimits:
    """How much a key opens, and for how long; None: no limit."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    days: float | None = None


NO_LIMITS = KeyLimits()


async def create_key(
    database: str,
    name: str,
    models: Sequence[str] = (),
    limits: KeyLimits = NO_LIMITS,
) -> list[str]:
    """Make a key and show it, once; raises ApiKeyError for a name that cannot be taken."""
    if not is_key_name(name):
        facts = f"at most {MAX_NAME_CHARACTERS} letters, digits and . _ @ -"
        raise ApiKeyError(f"A key's name has {facts}.")
    token = new_key()
    async with open_store(database) as store:
        now = await store.clock.now()
        await store.api_keys.add(
            ApiKey(
                name=name,
                sha256=token_sha256(token),
                shown=token[:SHOWN_CHARACTERS],
                models=frozenset(models) or None,
                requests_per_minute=limits.requests_per_minute,
                tokens_per_minute=limits.tokens_per_minute,
                created_at=now,
                expires_at=None if limits.days is None else now + limits.days * DAY_SECONDS,
            )
        )
        unknown = await _unknown(store, models)
    return [
        token,
        f"That is the key of {name}. It is kept as a hash only and cannot be shown again.",
        *(f"No model is called {model}; the key opens it once one is." for model in unknown),
    ]


async def revoke_key(database: str, name: str) -> list[str]:
    """Let a key open nothing any more; raises ApiKeyError if there is none of this name."""
    async with open_store(database) as store:
        await store.api_keys.revoke(name, await store.clock.now())
    return [f"The key of {name} opens nothing any more; running Trackers know it in a second."]


async def list_keys(database: str, *, as_json: bool) -> list[str]:
    """Tell all keys, the revoked ones included."""
    async with open_store(database) as store:
        keys, now = await store.api_keys.all(), await store.clock.now()
    if as_json:
        return json_lines({"keys": [_facts(key, now) for key in keys]})
    if not keys:
        return ["No keys. `meshnet-tracker key create NAME` makes one."]
    rows = [
        (
            key.name,
            f"{key.shown}...",
            _state(key, now),
            str(key.requests_per_minute or "no limit"),
            str(key.tokens_per_minute or "no limit"),
            ", ".join(sorted(key.models)) if key.models is not None else "all",
        )
        for key in keys
    ]
    return table(("name", "key", "state", "requests/min", "tokens/min", "models"), rows)


async def _unknown(store: Store, models: Iterable[str]) -> list[str]:
    """Names that mean no model, such as misspelled ones."""
    presets = [record.preset for record in await store.presets()]
    known = {model.name for model in served_models(presets)}
    known.update(alias.name for alias in await store.aliases.all())
    return [model for model in models if model not in known]


def _facts(key: ApiKey, now: float) -> dict[str, object]:
    return {
        "name": key.name,
        "shown": key.shown,
        "state": _state(key, now),
        "models": None if key.models is None else sorted(key.models),
        "requests_per_minute": key.requests_per_minute,
        "tokens_per_minute": key.tokens_per_minute,
        "created_at": key.created_at,
        "expires_at": key.expires_at,
        "revoked_at": key.revoked_at,
    }


def _state(key: ApiKey, now: float) -> str:
    if key.revoked_at is not None:
        return "revoked"
    if not key.opens(now):
        return "expired"
    return "valid" if key.expires_at is None else f"valid until {_day(key.expires_at)}"


def _day(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M} UTC"
