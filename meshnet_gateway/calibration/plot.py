"""Draws a calibration as SVG: throughput, times and waiting over the concurrency."""

from collections.abc import Sequence

import leather

from meshnet_gateway.calibration.knee import Finding, Knee, Level

Line = tuple[str, list[tuple[int, float]]]
"""A curve's name and its points."""


def draw_levels(levels: Sequence[Level], finding: Finding, units: str) -> str:
    """Return the picture; the knee is a line of its own through each of its charts."""
    ordered = sorted(levels, key=lambda level: level.concurrency)
    knee = finding.concurrency if isinstance(finding, Knee) else None
    curves: dict[str, list[Line]] = {
        units: [("throughput", [(one.concurrency, one.throughput) for one in ordered])],
        "seconds": [
            ("p50", [(one.concurrency, one.p50_seconds) for one in ordered]),
            ("p95", [(one.concurrency, one.p95_seconds) for one in ordered]),
        ],
        "requests that waited": [
            ("waiting", [(one.concurrency, one.waiting or 0) for one in ordered])
        ],
    }
    picture = leather.Grid()
    for title, lines in curves.items():
        picture.add_one(_chart(title, lines, knee))
    return str(picture.to_svg())


def _chart(title: str, lines: list[Line], knee: int | None) -> leather.Chart:
    highest = max((y for _, points in lines for _, y in points), default=0.0) or 1.0
    chart = leather.Chart(title)
    chart.add_x_axis(name="requests in flight")
    chart.add_y_scale(0, highest)
    for name, points in lines:
        chart.add_line(points, name=name)
    if knee is not None:
        chart.add_line([(knee, 0), (knee, highest)], name=f"knee at {knee}")
    return chart
