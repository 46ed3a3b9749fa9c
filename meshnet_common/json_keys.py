"""Keys of JSON objects as they were written; pure."""

from collections import Counter
from collections.abc import Sequence
from typing import Any


def doubled_key(pairs: Sequence[tuple[str, Any]]) -> str | None:
    """Return the key that comes most often in one object; None where each comes once."""
    if len(dict(pairs)) == len(pairs):
        return None
    ((key, _),) = Counter(key for key, _ in pairs).most_common(1)
    return key
