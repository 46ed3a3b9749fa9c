"""How long a load may take: from its bytes and the measured speed of the Worker's line."""

SLACK = 2.0
"""A line may be half as fast as it was measured."""
BASE_SECONDS = 60.0
"""For what is no download: accepting, reading weights into the device, the probe pass."""
MOST_SECONDS = 24 * 3600.0


def load_seconds(load_bytes: int, download_bytes_per_sec: float) -> float | None:
    """Return how long the download takes; None if the line was never measured."""
    return load_bytes / download_bytes_per_sec if download_bytes_per_sec > 0 else None


def deadline_seconds(load_bytes: int, download_bytes_per_sec: float, usual: float) -> float:
    """Return the deadline of a load; `usual` is the policy's, where nothing was measured."""
    seconds = load_seconds(load_bytes, download_bytes_per_sec)
    if seconds is None:
        return usual
    return min(BASE_SECONDS + SLACK * seconds, MOST_SECONDS)
