"""When the same thing is said too often: the first few at once, then one sum a window."""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

Sample = TypeVar("Sample")

BURST = 5
WINDOW = 60.0
KEYS = 512


@dataclass(frozen=True, slots=True)
class Repeated(Generic[Sample]):
    """`count` lines like `last` were held back within `seconds`."""

    last: Sample
    count: int
    seconds: float


@dataclass(slots=True)
class _Window(Generic[Sample]):
    started: float
    allowed: int
    held: int = 0
    last: Sample | None = None


class Flood(Generic[Sample]):
    """Lets `burst` lines of a key through per `window` seconds and counts the others.

    While a key keeps coming, each further window lets one line through. At most
    `keys` keys are remembered; the oldest goes first, and its sum is still told.
    """

    def __init__(self, burst: int = BURST, window: float = WINDOW, keys: int = KEYS) -> None:
        self._burst = burst
        self._window = window
        self._keys = keys
        self._windows: dict[Hashable, _Window[Sample]] = {}
        self._evicted: list[Repeated[Sample]] = []

    def admit(self, key: Hashable, sample: Sample, now: float) -> bool:
        """True when `sample` shall be said; else it is counted. `now` is monotonic seconds."""
        window = self._windows.get(key)
        if window is None:
            self._make_room(now)
            window = self._windows[key] = _Window(now, self._burst)
        if window.allowed > 0:
            window.allowed -= 1
            return True
        window.held += 1
        window.last = sample
        return False

    def due(self, now: float) -> list[Repeated[Sample]]:
        """The sums of all windows that have ended, each told once."""
        ended, self._evicted = self._evicted, []
        for key, window in list(self._windows.items()):
            if now - window.started < self._window:
                continue
            del self._windows[key]
            if window.held:
                ended += _sum(window, now)
                self._windows[key] = _Window(now, allowed=1)
        return ended

    def rest(self, now: float) -> list[Repeated[Sample]]:
        """All sums not told yet, as at the end of the process; everything is forgotten."""
        left, self._evicted = self._evicted, []
        for window in self._windows.values():
            left += _sum(window, now)
        self._windows.clear()
        return left

    def _make_room(self, now: float) -> None:
        if len(self._windows) >= self._keys:
            oldest = next(iter(self._windows))
            self._evicted += _sum(self._windows.pop(oldest), now)
            del self._evicted[: -self._keys]


def _sum(window: _Window[Sample], now: float) -> list[Repeated[Sample]]:
    if window.last is None:
        return []
    return [Repeated(window.last, window.held, now - window.started)]
