import io
import sys

import pytest
from structlog.testing import capture_logs

from meshnet_worker.weights import progress
from meshnet_worker.weights.progress import shown_progress


class Screen(io.StringIO):
    """Where a person watches."""

    def isatty(self) -> bool:
        return True


def test_a_person_sees_bytes_rate_and_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setattr(progress, "DRAW_SECONDS", 0.0)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    with shown_progress("org-model") as on_progress:
        on_progress(1_000_000, 4_000_000)
        on_progress(2_000_000, 4_000_000)
    assert "org-model" in screen.getvalue()
    assert "2.0/4.0 MB" in screen.getvalue()
    assert "B/s" in screen.getvalue()


def test_a_log_gets_a_line_now_and_then_and_one_at_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with capture_logs() as logs, shown_progress("org-model") as on_progress:
        for done in (0, 5, 10, 15, 20):
            now = 100.0 + done
            on_progress(done, 21)
        now = 121.0
        on_progress(21, 21)
    assert [line["bytes_done"] for line in logs] == [10, 20, 21]
    assert (logs[0]["bytes_per_second"], logs[0]["eta_seconds"]) == (1, 11)
