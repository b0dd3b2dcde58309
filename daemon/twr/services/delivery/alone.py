"""Turns for jobs that may be poison: each is delivered with nothing else in flight."""

from collections.abc import Container
from dataclasses import dataclass


@dataclass(slots=True)
class Alone:
    """Whose turn it is. Between two such jobs all others get as long as one took, the waiting
    for the rest to land included. Times are monotonic seconds."""

    _job: str | None = None
    _since: float = 0.0
    _after: float = 0.0

    def wanted(self, held: Container[str], waits: bool, now: float) -> bool:
        """Whether nothing else may start: one of them is among the jobs `held`, or one `waits`
        and it is its turn."""
        if self._job is not None:
            if self._job in held:
                return True
            self._job, self._after = None, 2 * now - self._since
        if not waits or now < self._after:
            self._since = now
            return False
        return True

    @property
    def turn_at(self) -> float:
        """When the next one may start that waits now."""
        return self._after

    def began(self, job_id: str) -> None:
        """This one is leased and starts."""
        self._job = job_id
