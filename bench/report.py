"""Figures, the bars they have to reach, and how both are printed."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from bench import stats


@dataclass(frozen=True, slots=True)
class Figure:
    """One measure of one side; a value for each run."""

    measure: str
    side: str
    unit: str
    values: tuple[float, ...]

    @property
    def median(self) -> float:
        """The median of the runs."""
        return stats.median(self.values)

    def line(self) -> str:
        """Median and spread."""
        low, high = min(self.values), max(self.values)
        return (
            f"{self.measure:44} {self.side:16} {number(self.median):>8} {self.unit:9} "
            f"({number(low)} to {number(high)}, {len(self.values)} runs)"
        )


@dataclass(frozen=True, slots=True)
class Bar:
    """What a measure has to reach: `value` at least (or with `most`, at most) `limit`."""

    name: str
    value: float
    limit: float
    most: bool = False
    unit: str = "×"

    @property
    def reached(self) -> bool:
        """Whether it does; nan does not."""
        return self.value <= self.limit if self.most else self.value >= self.limit

    def line(self) -> str:
        """One line of the table."""
        sign = "≤" if self.most else "≥"
        word = "pass" if self.reached else "FAIL"
        wanted = f"{sign} {number(self.limit)} {self.unit}"
        return f"{word}  {self.name:58} {number(self.value):>7} {self.unit:3} (bar {wanted})"


@dataclass(slots=True)
class Report:
    """All that one call measured."""

    figures: list[Figure] = field(default_factory=list)
    bars: list[Bar] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    disturbed: list[float] = field(default_factory=list)

    def add(self, measure: str, side: str, unit: str, values: Sequence[float]) -> Figure:
        """Keep a figure."""
        figure = Figure(measure, side, unit, tuple(values))
        self.figures.append(figure)
        return figure

    def bar(
        self, name: str, value: float, limit: float, *, most: bool = False, unit: str = "×"
    ) -> None:
        """Hold a value against its bar."""
        self.bars.append(Bar(name, value, limit, most, unit))

    def find(self, measure: str, side: str) -> Figure | None:
        """A figure, if it was measured."""
        return next((it for it in self.figures if (it.measure, it.side) == (measure, side)), None)

    def text(self) -> str:
        """The tables."""
        lines = [figure.line() for figure in self.figures]
        lines += ["", *(bar.line() for bar in self.bars)]
        lines += ["", "lost or out of order: " + ("; ".join(self.problems) or "nothing")]
        lines.append(self.quiet())
        return "\n".join(lines)

    def quiet(self) -> str:
        """How much of the daemon's core others took: figures mean little unless it is little."""
        if not self.disturbed:
            return "others on the daemon's core: not looked at"
        median, most = stats.median(self.disturbed), max(self.disturbed)
        return f"others on the daemon's core: {median:.1%} (median of all runs), {most:.1%} at most"

    def data(self) -> dict[str, Any]:
        """The same for a file."""
        return {
            "figures": [
                {
                    "measure": it.measure,
                    "side": it.side,
                    "unit": it.unit,
                    "median": _finite(it.median),
                    "values": [_finite(value) for value in it.values],
                }
                for it in self.figures
            ],
            "bars": [
                {
                    "name": it.name,
                    "value": _finite(it.value),
                    "limit": it.limit,
                    "at_most": it.most,
                    "unit": it.unit,
                    "reached": it.reached,
                }
                for it in self.bars
            ],
            "problems": self.problems,
            "quiet": self.quiet(),
        }


def number(value: float) -> str:
    """Three digits that mean something."""
    if not math.isfinite(value):
        return "never" if value > 0 else "-"
    if abs(value) >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
