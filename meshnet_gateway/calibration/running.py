"""Runs a calibration from the settings to what is printed."""

from dataclasses import dataclass
from typing import TextIO

from rich.console import Console

from meshnet_common.edge.clock import SteadyClock
from meshnet_common.edge.forwarding import upstream_session
from meshnet_gateway.calibration.knee import Knee, Level, find_knee
from meshnet_gateway.calibration.plot import draw_levels
from meshnet_gateway.calibration.ramp import Plan, Ramp
from meshnet_gateway.calibration.report import UNITS, conclusion, level_table
from meshnet_gateway.calibration.sharing import advise_on_sharing
from meshnet_gateway.calibration.target import choose_target
from meshnet_gateway.config.settings import Settings


@dataclass(frozen=True, slots=True)
class CalibrateOptions:
    """What the command was told."""

    model: str
    endpoint: str | None
    level_seconds: float
    most: int
    answer_tokens: int
    plot: TextIO | None
    """Where the curves are drawn."""


async def calibrate(settings: Settings, options: CalibrateOptions, console: Console) -> None:
    """Ramp the load of one Endpoint and print what was found; raises NoTargetError."""
    model, endpoint = choose_target(settings, options.model, options.endpoint)
    plan = Plan(
        model=model.id,
        kind=model.kind,
        endpoint=endpoint,
        level_seconds=options.level_seconds,
        most=options.most,
        answer_tokens=options.answer_tokens,
    )

    def on_level(level: Level) -> None:
        throughput = f"{level.throughput:.1f} {UNITS[model.kind]}"
        console.print(f"{level.concurrency} in flight: {throughput}", highlight=False)

    async with upstream_session() as session:
        levels = await Ramp(session, SteadyClock(), plan).run(on_level)
    finding = find_knee(levels)
    console.print(level_table(levels, finding, model.kind))
    console.print(conclusion(finding, endpoint.gpu_group), highlight=False, soft_wrap=True)
    if isinstance(finding, Knee):
        for line in advise_on_sharing(settings, endpoint.gpu_group, finding.concurrency):
            console.print(line, highlight=False, soft_wrap=True)
    if options.plot is not None:
        options.plot.write(draw_levels(levels, finding, UNITS[model.kind]))
