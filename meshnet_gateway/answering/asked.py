"""What a client wants; pure."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Asked:
    """What a client wants: its body as it came, what that says, and the headers to pass on."""

    model: str
    is_stream: bool
    url_path: str
    body: bytes
    headers: Mapping[str, str]
    caller: Mapping[str, str]
    """Who asks, with its key: for Trackers, Peers, and Head Workers, who ask their Tracker for a
    Route with it."""
    key: str = ""
    """Names how its conversation begins, where that matters."""
    via: tuple[str, ...] = ()
    """The Meshes that it came through."""

    @property
    def is_embedding(self) -> bool:
        return self.url_path.endswith("/embeddings")
