"""Numbers that an option of a command may have."""

import math
from typing import Any

import click


class FiniteRange(click.FloatRange):
    """A range of numbers; click's own takes `nan`, which is neither below nor above anything."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a finite number.", param, ctx)
        return number
