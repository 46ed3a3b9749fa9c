"""The Trackers that a Worker knows, all over one database, and the one that it stays with."""

FIRST_PATIENCE_SECONDS = 3.0
"""Before the Tracker has said how soon it counts a Worker as lost."""
TRIES_PER_LIFE = 3
"""All Trackers can be tried so often between a heartbeat and being lost, if each is silent."""


class Trackers:
    """Base URLs without a path, in the Volunteer's order; any of them takes any call."""

    def __init__(self, *urls: str) -> None:
        self._urls = tuple(dict.fromkeys(url.rstrip("/") for url in urls))
        self._present = 0
        self._patience_seconds = FIRST_PATIENCE_SECONDS

    @property
    def present(self) -> str:
        """The one that a call is made to first."""
        return self._urls[self._present]

    def round(self) -> tuple[tuple[str, float | None], ...]:
        """Name each once, from the present one on, with the seconds that it may be silent.

        None for the last: if all are slow, one of them gets the time that it takes.
        """
        *others, last = self._urls[self._present :] + self._urls[: self._present]
        return (*((url, self._patience_seconds) for url in others), (last, None))

    def stay_with(self, url: str) -> bool:
        """Make the one that has answered the present one; whether it was another."""
        before, self._present = self._present, self._urls.index(url)
        return self._present != before

    def learn_terms(self, heartbeat_seconds: float, lost_after_seconds: float) -> None:
        """Be so patient with a silent one that the others still hear of this Worker in time."""
        life = lost_after_seconds - heartbeat_seconds
        self._patience_seconds = life / (TRIES_PER_LIFE * len(self._urls))
