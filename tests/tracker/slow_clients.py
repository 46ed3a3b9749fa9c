"""Clients that take little at a time, or nothing."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit


@contextmanager
def connected(url: str) -> Iterator[socket.socket]:
    """Connect with a socket that holds little and that nobody reads by itself."""
    place = urlsplit(url)
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        client.connect((place.hostname, place.port))
        yield client
