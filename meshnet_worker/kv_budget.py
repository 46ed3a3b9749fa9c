"""How many bytes of KV this Worker may hold, and who holds them; pure accounting.

A reservation is made before a Session starts and given back whole when it ends, so that requests
alone can never run the device out of memory.
"""

from meshnet_common.errors import MeshnetError


class KvExhaustedError(MeshnetError):
    """The Worker has no room for the Session's keys and values."""


class KvBudget:
    """Bytes of KV by Session; what is free is what neither weights nor Sessions hold."""

    def __init__(self, budget_bytes: int = 0) -> None:
        self.budget_bytes = budget_bytes
        """The whole Budget, weights and KV together; 0 until the device is known."""
        self._weight_bytes = 0
        self._reserved: dict[int, int] = {}

    @property
    def reserved_bytes(self) -> int:
        return sum(self._reserved.values())

    @property
    def free_bytes(self) -> int:
        return max(0, self.budget_bytes - self._weight_bytes - self.reserved_bytes)

    def set_weight_bytes(self, weight_bytes: int) -> None:
        self._weight_bytes = weight_bytes

    def reserve(self, session: int, total_bytes: int) -> None:
        """Hold `total_bytes` for a Session, in place of what it held; raises KvExhaustedError."""
        missing = total_bytes - self._reserved.get(session, 0)
        if missing > self.free_bytes:
            raise KvExhaustedError(f"It needs {missing} bytes more and {self.free_bytes} are free.")
        self._reserved[session] = max(total_bytes, self._reserved.get(session, 0))

    def release(self, session: int) -> None:
        self._reserved.pop(session, None)
