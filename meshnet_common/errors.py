"""The error tree of meshnet; an exception's docstring is its message.

MeshnetError
├── ProtocolError          bytes from a peer that do not follow the protocol
├── TicketError            a Route Ticket that must not be honoured
└── (each room adds its own leaves beside the code that raises them)
"""

import inspect


class MeshnetError(Exception):
    """Something went wrong in the Mesh."""

    def __init__(self, detail: str = "") -> None:
        self.detail = detail
        super().__init__(detail)

    def __str__(self) -> str:
        """Return the docstring's first line, and the facts of this occurrence behind it."""
        summary = (inspect.getdoc(type(self)) or type(self).__name__).splitlines()[0]
        return f"{summary} {self.detail}".strip()


class ProtocolError(MeshnetError):
    """A peer sent bytes that do not follow the meshnet protocol."""


class TicketError(MeshnetError):
    """The Route Ticket is not valid here."""
