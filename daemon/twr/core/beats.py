"""Which loops are still alive: each has to beat within its own time."""

from dataclasses import dataclass


@dataclass(slots=True)
class _Beat:
    within: float
    last: float


class Beats:
    """A table of loops by name; all times are monotonic seconds."""

    def __init__(self) -> None:
        self._beats: dict[str, _Beat] = {}

    def expect(self, name: str, within: float, now: float) -> None:
        """From `now` on `name` has to beat at least every `within` seconds."""
        self._beats[name] = _Beat(within, now)

    def beat(self, name: str, now: float) -> None:
        """`name` is alive. Raises KeyError for a loop that nobody expects."""
        self._beats[name].last = now

    def forget(self, name: str) -> None:
        """`name` has ended on purpose."""
        self._beats.pop(name, None)

    def stale(self, now: float) -> tuple[str, ...]:
        """The loops that are overdue, in the order in which they were expected."""
        return tuple(name for name, beat in self._beats.items() if now - beat.last > beat.within)
