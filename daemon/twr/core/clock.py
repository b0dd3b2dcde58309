"""Time, as it is passed to whoever needs it."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Clock:
    """`time` gives unix seconds, `monotonic` seconds that never jump."""

    time: Callable[[], float]
    monotonic: Callable[[], float]
