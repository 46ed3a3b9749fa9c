"""Why weights cannot be had; each message says what to do about it."""

from meshnet_common.errors import MeshnetError


class WeightsError(MeshnetError):
    """The weights cannot be had."""


class WeightsNotFoundError(WeightsError):
    """The model's files are not on this machine and cannot be fetched."""


class DigestMismatchError(WeightsError):
    """The weights are not those that the Operator registered; nothing of them is loaded."""


class WeightsFolderError(WeightsError):
    """The folder for weights cannot be used."""


class DiskFullError(WeightsError):
    """The disk has no room for the weights; what was fetched is kept for the next try."""


class DiskBudgetError(WeightsError):
    """The weights do not fit into the disk budget."""


def mismatch(what: str, expected: str, found: str) -> DigestMismatchError:
    """Say which bytes are wrong, and what to do."""
    return DigestMismatchError(
        f"{what} has the SHA-256 {found}, not {expected}. The source is damaged or was changed; "
        "if the change was meant, remove and add the preset at the Tracker."
    )
