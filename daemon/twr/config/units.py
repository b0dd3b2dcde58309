"""Durations and sizes as they are written in the file, and text that means something else."""

import re
from collections.abc import Mapping

_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}
_BYTES = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_QUANTITY = re.compile(r"(\d{1,15}(?:\.\d{1,9})?) ?([A-Za-z]+)", re.ASCII)
_NUMBER = re.compile(r"\d+(?:\.\d+)?", re.ASCII)
LONGEST = 366 * 86400.0


def duration(value: object) -> float:
    """Seconds of `500ms`, `10s`, `5m`, `24h` or `30d`, at most 366 days.

    ValueError for all else, with what to write instead.
    """
    seconds = _quantity(value, _SECONDS, bare="s", example="10s, 5m, 24h")
    if seconds > LONGEST:
        raise ValueError(f"{value} is more than a year")
    return seconds


def size(value: object) -> int:
    """Bytes of `512B`, `64KiB`, `1MiB` or `2GiB`; ValueError for all else, as `duration`."""
    return int(_quantity(value, _BYTES, bare="MiB", example="512KiB, 1MiB"))


def seconds_text(seconds: float) -> str:
    """Seconds as they would be written: 0.5 as 500ms, 90 as 90s, 3600 as 1h."""
    for unit in ("d", "h", "m", "s"):
        if seconds >= _SECONDS[unit] and seconds % _SECONDS[unit] == 0:
            return f"{seconds / _SECONDS[unit]:.0f}{unit}"
    return f"{seconds * 1000:.15g}ms" if seconds else "0s"


def _quantity(value: object, units: Mapping[str, float], *, bare: str, example: str) -> float:
    text = str(value)
    if not isinstance(value, bool) and _NUMBER.fullmatch(text):
        raise ValueError(f"{text} has no unit; write {text}{bare}")
    match = _QUANTITY.fullmatch(text) if isinstance(value, str) else None
    if match is None:
        raise ValueError(f"write a number and a unit, such as {example}")
    number, unit = match.groups()
    if unit not in units:
        raise ValueError(f"`{unit}` is no unit here; known are {', '.join(units)}")
    return float(number) * units[unit]
