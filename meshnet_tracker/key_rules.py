"""What an API key is, what it opens, and how its pace is told; pure."""

import math
import re
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from meshnet_tracker.tokens import token_sha256

PREFIX = "mn_sk_"
KEY_BYTES = 32
SHOWN_CHARACTERS = len(PREFIX) + 4
"""So much of a key is shown, for people to tell keys apart."""
WINDOW_SECONDS = 60.0
"""Over this time a rate is counted; all of it may be spent at once."""
FITTING_SHARE = 0.5
"""A request counts if so much of it fits: sums of many steps are not exact."""
MAX_NAME_CHARACTERS = 64

_NAME = re.compile(rf"[A-Za-z0-9._@-]{{1,{MAX_NAME_CHARACTERS}}}")


@dataclass(frozen=True, slots=True)
class ApiKey:
    """One key; `models` are public names (None: all), times are seconds since the epoch."""

    name: str
    sha256: str
    shown: str
    created_at: float
    models: frozenset[str] | None = None
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    expires_at: float | None = None
    revoked_at: float | None = None

    @property
    def is_limited(self) -> bool:
        return self.requests_per_minute is not None or self.tokens_per_minute is not None

    def opens(self, now: float) -> bool:
        """Whether it opens anything at this instant."""
        is_over = self.expires_at is not None and self.expires_at <= now
        return self.revoked_at is None and not is_over

    def allows(self, model: str) -> bool:
        """Whether it opens this public name."""
        return self.models is None or model in self.models


@dataclass(frozen=True, slots=True)
class Pace:
    """How busy a key is: until when, one request or token being `step` seconds."""

    busy_until: float
    now: float
    step: float
    kind: str = "requests"
    """Of what so many a minute are allowed: `requests` or `tokens`."""

    @property
    def limit(self) -> int:
        return round(WINDOW_SECONDS / self.step)

    @property
    def remaining(self) -> int:
        """So many could follow at once."""
        free_seconds = self.now + WINDOW_SECONDS - self.busy_until
        return max(0, min(self.limit, math.floor(free_seconds / self.step + 1 - FITTING_SHARE)))

    @property
    def reset_seconds(self) -> float:
        """After so long the whole limit is there again."""
        return max(0.0, self.busy_until - self.now)

    @property
    def retry_seconds(self) -> float:
        """After so long one more is within the limit."""
        needed = self.step * FITTING_SHARE
        return max(0.0, self.busy_until + needed - WINDOW_SECONDS - self.now)

    def headers(self) -> dict[str, str]:
        """Tell it as OpenAI's clients expect it."""
        return {
            f"x-ratelimit-limit-{self.kind}": str(self.limit),
            f"x-ratelimit-remaining-{self.kind}": str(self.remaining),
            f"x-ratelimit-reset-{self.kind}": duration(self.reset_seconds),
        }


@dataclass(frozen=True, slots=True)
class Taken:
    """What became of a request of a key with limits, and how busy the key is by each of them."""

    paces: tuple[Pace, ...]
    is_counted: bool
    """Else it is one too many, and has cost nothing."""

    @property
    def exceeded(self) -> Pace:
        """The limit that a request that was not counted has met, the longest one to wait for."""
        return max(self.paces, key=lambda pace: pace.retry_seconds)

    def headers(self) -> dict[str, str]:
        return {name: text for pace in self.paces for name, text in pace.headers().items()}


@dataclass(frozen=True, slots=True)
class KeyBook:
    """All keys, by the hash of each."""

    by_sha256: Mapping[str, ApiKey] = field(default_factory=dict)

    @classmethod
    def of(cls, keys: Iterable[ApiKey]) -> "KeyBook":
        return cls({key.sha256: key for key in keys})

    def find(self, token: str, now: float) -> ApiKey | None:
        """Find the key that is shown, if it opens anything."""
        key = self.by_sha256.get(token_sha256(token))
        return key if key is not None and key.opens(now) else None


def new_key() -> str:
    """Make a key; whoever calls this is the last to see it whole."""
    return f"{PREFIX}{secrets.token_urlsafe(KEY_BYTES)}"


def is_key_name(name: str) -> bool:
    """Whether a key may be called so."""
    return _NAME.fullmatch(name) is not None


def duration(seconds: float) -> str:
    """Write a time as OpenAI's headers do: `12ms`, `1.5s`, `6m0s`."""
    if seconds < 1:
        return f"{math.ceil(seconds * 1000)}ms"
    if seconds < 60:
        return f"{seconds:.3f}".rstrip("0").rstrip(".") + "s"
    minutes, rest = divmod(math.ceil(seconds), 60)
    return f"{minutes}m{rest}s"
