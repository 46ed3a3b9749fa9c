"""What a Worker says in a heartbeat, beside what the database has of its words; pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

from meshnet_common.protocol.messages import Heartbeat, ShardReport
from meshnet_tracker.store.holdings import places, tidy_reports


class Load(NamedTuple):
    """How busy a Worker is: whole numbers that change all the time."""

    sessions: int
    queued: int
    kv_bytes_free: int


LOAD = Load._fields

SPEEDS = ("decode_tokens_per_sec_per_layer", "prefill_tokens_per_sec_per_layer", "speeds_of")
BESIDE_LOAD = (
    "directive_epoch",
    "leaving",
    "link_bytes_per_sec",
    "download_bytes_per_sec",
    *SPEEDS,
    "round_trips",
)
FIGURES = (*LOAD, *BESIDE_LOAD)


@dataclass(frozen=True, slots=True)
class Known:
    """What the database has of a Worker's words since its change of this number."""

    changed: int
    read_at: float
    token_sha256: str
    was_live: bool
    figures: Mapping[str, Any]
    shards: tuple[ShardReport, ...]


@dataclass(frozen=True, slots=True)
class Said:
    """A heartbeat, beside what was known of its Worker."""

    known: Known
    figures: Mapping[str, Any]
    shards: tuple[ShardReport, ...]

    @classmethod
    def of(cls, known: Known, beat: Heartbeat) -> Self:
        return cls(known, _figures(known.figures, beat), tidy_reports(beat.shards))

    @property
    def is_moved(self) -> bool:
        """Whether its Shards are not the very same."""
        return self.shards != self.known.shards

    @property
    def is_news(self) -> bool:
        known = self.known
        if not known.was_live or self.figures["leaving"] != known.figures["leaving"]:
            return True
        return self.is_moved and places(self.shards) != places(known.shards)

    @property
    def is_same(self) -> bool:
        return self.known.was_live and not self.is_moved and self.figures == self.known.figures

    @property
    def is_load_only(self) -> bool:
        """Whether nothing but its load has changed."""
        known = self.known
        return (
            known.was_live
            and not self.is_moved
            and all(self.figures[name] == known.figures[name] for name in BESIDE_LOAD)
        )

    def known_at(self, number: int) -> Known:
        """Tell what is known of the Worker once all this is stored under a number."""
        known = self.known
        return Known(number, known.read_at, known.token_sha256, True, self.figures, self.shards)


def _figures(before: Mapping[str, Any], beat: Heartbeat) -> dict[str, Any]:
    """Return what is to be stored; what is not measured stays as it was."""
    figures = {name: getattr(beat, name) for name in FIGURES}
    figures["round_trips"] = [[trip.worker_id, trip.seconds] for trip in beat.round_trips]
    for name in ("link_bytes_per_sec", "download_bytes_per_sec"):
        figures[name] = figures[name] or before[name]
    if not beat.speeds_of:
        figures |= {name: before[name] for name in SPEEDS}
    return figures
