"""The figures as a drawing: one group of bars for each measure, as long as they are of the most."""

import math
from collections.abc import Sequence
from html import escape
from itertools import groupby

from bench.report import Figure, Report, number

SHOWN = (
    "accept alone, 40 connections",
    "accept and deliver at once, one route: accepted",
    "accept and deliver at once, one route: delivered",
    "accept and deliver at once, 3 routes: delivered",
    "lag from POST to target at 300/s, p50",
    "lag from POST to target at 300/s, p99",
)
COLOURS = {"twr": "#2f6fde", "plain": "#9aa0a6", "bare": "#c9cdd2"}
NAMES = {"plain": "FastAPI + BRPOPLPUSH + httpx", "bare": "Hypercorn alone, doing nothing"}
WIDTH, LEFT, LONGEST = 760, 230, 420
ROW, GAP, TITLE = 18, 16, 20


def svg(report: Report, caption: str) -> str:
    """The whole drawing; whiskers span all runs."""
    figures = [it for it in report.figures if it.measure in SHOWN and it.side in COLOURS]
    figures = [it for it in figures if all(map(math.isfinite, it.values))]
    parts: list[str] = []
    y = 10
    for measure, group in groupby(figures, key=lambda it: it.measure):
        shown = list(group)
        parts.append(_text(10, y + 12, measure, weight="bold"))
        y += TITLE
        most = max(max(it.values) for it in shown)
        for it in shown:
            parts += _bar(it, y, most)
            y += ROW
        y += GAP
    parts.append(_text(10, y + 10, caption, size=10))
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y + 24}" '
        'font-family="system-ui, sans-serif" font-size="12">'
        f'<rect width="{WIDTH}" height="{y + 24}" fill="white"/>'
    )
    return "\n".join([head, *parts, "</svg>", ""])


def _bar(figure: Figure, y: int, most: float) -> Sequence[str]:
    scale = LONGEST / most
    length = max(1.0, figure.median * scale)
    low, high = (LEFT + value * scale for value in (min(figure.values), max(figure.values)))
    middle = y + ROW / 2 - 1
    box = f'x="{LEFT}" y="{y}" width="{length:.1f}" height="{ROW - 4}"'
    label = f"{number(figure.median)} {figure.unit}"
    return (
        _text(LEFT - 8, y + 12, NAMES.get(figure.side, figure.side), anchor="end"),
        f'<rect {box} fill="{COLOURS[figure.side]}"/>',
        f'<path d="M{low:.1f} {middle}H{high:.1f}" stroke="#202124" stroke-width="1"/>',
        _text(max(high, LEFT + length) + 6, y + 12, label),
    )


def _text(
    x: float, y: float, text: str, *, anchor: str = "start", weight: str = "normal", size: int = 12
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-weight="{weight}" '
        f'font-size="{size}" fill="#202124">{escape(text)}</text>'
    )
