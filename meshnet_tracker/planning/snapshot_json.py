"""A Mesh Snapshot as JSON: what a plan was made of, to look at it again elsewhere and later.

The instant belongs to it, since Workers cool down until a certain time. URLs of Workers are in it,
keys and tokens are not.
"""

import msgspec

from meshnet_common.errors import MeshnetError
from meshnet_tracker.planning.snapshot import MeshSnapshot, PlannerPolicy

FORMAT = 1


class SnapshotFormatError(MeshnetError):
    """The file is no Mesh Snapshot of this release."""

    exit_status = 3


class SavedSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """All that a planning pass takes; `taken_at` is seconds since the epoch."""

    format: int = FORMAT
    taken_at: float
    policy: PlannerPolicy
    snapshot: MeshSnapshot


def encode_snapshot(saved: SavedSnapshot) -> bytes:
    """Write it so that equal snapshots are equal bytes, and a person can read them."""
    return msgspec.json.format(msgspec.json.encode(saved, order="deterministic"), indent=1)


def decode_snapshot(data: bytes) -> SavedSnapshot:
    """Read it again; raises SnapshotFormatError."""
    try:
        saved = msgspec.json.decode(data, type=SavedSnapshot)
    except (msgspec.DecodeError, ValueError) as error:
        raise SnapshotFormatError(f"{error}.") from error
    if saved.format != FORMAT:
        raise SnapshotFormatError(f"It has format {saved.format}, this release reads {FORMAT}.")
    return saved
