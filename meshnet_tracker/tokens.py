"""The form in which the Tracker knows secrets that others show; pure.

Each has 256 random bits, so a plain SHA-256 is as good as any: nobody guesses one from there.
"""

import hashlib


def token_sha256(token: str) -> str:
    """Return what is kept of a Worker's token, an admin's, or an API key."""
    return hashlib.sha256(token.encode()).hexdigest()
