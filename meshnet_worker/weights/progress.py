"""Shows how far a download is: a bar where a person watches, else a line now and then."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import structlog
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

LINE_SECONDS = 10.0
DRAW_SECONDS = 0.2

OnProgress = Callable[[int, int], None]
"""Hears bytes done and bytes in all."""

log = structlog.get_logger()


@contextmanager
def shown_progress(label: str) -> Iterator[OnProgress]:
    """Show progress on stderr while the block lasts."""
    if sys.stderr.isatty():
        with _bar(label) as on_progress:
            yield on_progress
    else:
        yield _Lines(label, time.monotonic).on_progress


@contextmanager
def _bar(label: str) -> Iterator[OnProgress]:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    # Drawn from here, not from a thread of its own; it leaves nothing behind among the log lines.
    with Progress(
        *columns, console=Console(stderr=True), auto_refresh=False, transient=True
    ) as progress:
        task = progress.add_task(label, total=None)
        drawn_at = 0.0

        def on_progress(bytes_done: int, bytes_total: int) -> None:
            nonlocal drawn_at
            progress.update(task, completed=bytes_done, total=bytes_total)
            if time.monotonic() - drawn_at >= DRAW_SECONDS:
                drawn_at = time.monotonic()
                progress.refresh()

        yield on_progress


class _Lines:
    def __init__(self, label: str, clock: Callable[[], float]) -> None:
        self._label = label
        self._clock = clock
        self._began: tuple[float, int] | None = None
        self._said_at = 0.0

    def on_progress(self, bytes_done: int, bytes_total: int) -> None:
        now = self._clock()
        if self._began is None:
            self._began = (now, bytes_done)
        began_at, began_bytes = self._began
        is_done = bytes_done >= bytes_total
        if now - max(self._said_at, began_at) < LINE_SECONDS and not is_done:
            return
        self._said_at = now
        rate = (bytes_done - began_bytes) / max(now - began_at, 1e-9)
        eta_seconds = round((bytes_total - bytes_done) / rate) if rate else "unknown"
        log.info(
            "weights arrive",
            model=self._label,
            bytes_done=bytes_done,
            bytes_total=bytes_total,
            bytes_per_second=round(rate),
            eta_seconds=eta_seconds,
        )
