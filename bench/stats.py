"""The little arithmetic that the figures need."""

import statistics
from collections.abc import Sequence


def percentile(values: Sequence[float], percent: float) -> float:
    """The value below or at which `percent` of the values lie (nearest rank); nan of none."""
    if not values:
        return float("nan")
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


def median(values: Sequence[float]) -> float:
    """The median; nan of none."""
    return statistics.median(values) if values else float("nan")


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """The ratios of runs that were made side by side."""
    return [a / b for a, b in zip(ours, theirs, strict=True) if b]


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """The median of these ratios."""
    return median(ratios(ours, theirs))
