"""Durations and sizes, read and written."""

import pytest

from twr.config.units import duration, seconds_text, size

DURATIONS = [
    ("500ms", 0.5),
    ("10s", 10.0),
    ("1.5m", 90.0),
    ("24h", 86400.0),
    ("30d", 2592000.0),
    ("10 s", 10.0),
    ("0s", 0.0),
]
SIZES = [("1B", 1), ("64KiB", 65536), ("1MiB", 1048576), ("1.5GiB", 1610612736)]
WRITTEN = [
    (0.0, "0s"),
    (0.0015, "1.5ms"),
    (0.5, "500ms"),
    (2.5, "2500ms"),
    (10.0, "10s"),
    (90.0, "90s"),
    (3600.0, "1h"),
    (86400.0, "1d"),
]


@pytest.mark.parametrize(("text", "seconds"), DURATIONS)
def test_durations(text: str, seconds: float) -> None:
    """A number and a unit are seconds."""
    assert duration(text) == seconds


@pytest.mark.parametrize(("text", "count"), SIZES)
def test_sizes(text: str, count: int) -> None:
    """A number and a unit are bytes."""
    assert size(text) == count


@pytest.mark.parametrize("value", [None, [], "", "s", "1 2s", "1,5s", "\u0661s", "1e3s", "10s\n"])
def test_what_is_no_duration(value: object) -> None:
    """Anything else is refused with an example."""
    with pytest.raises(ValueError, match=r"^write a number and a unit, such as 10s, 5m, 24h$"):
        duration(value)


@pytest.mark.parametrize(("seconds", "text"), WRITTEN)
def test_seconds_as_they_would_be_written(seconds: float, text: str) -> None:
    """The largest unit that divides is used, and the text means the same seconds."""
    assert seconds_text(seconds) == text
    assert duration(text) == seconds
