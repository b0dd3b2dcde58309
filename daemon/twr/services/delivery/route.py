"""One route as it runs: its slots, its connections, its breaker, and what it has done so far."""

from dataclasses import dataclass, field

from twr.config import Route
from twr.core.breaker import Breaker
from twr.core.outcome import Policy
from twr.edges.sender import Sender

# A lease outlives the request it covers, so that no request outlives its lease.
LEASE_MARGIN = 10.0


@dataclass(frozen=True, slots=True)
class RouteSecrets:
    """What a route signs with (newest first), and the secret header of its own, if any."""

    signing: tuple[bytes, ...] = field(repr=False)
    token: str | None = field(repr=False)


@dataclass(slots=True)
class RunningRoute:
    """The state of a route in this process. Times are monotonic seconds."""

    route: Route
    secrets: RouteSecrets
    sender: Sender
    breaker: Breaker
    flying: int = 0
    offered: int = 0
    ready: int = 0
    suspects: int = 0
    next_due: float | None = None
    news: bool = True
    delivered: int = 0
    failed_attempts: int = 0

    @property
    def lease(self) -> float:
        return self.route.timeout + LEASE_MARGIN

    def free(self, now: float) -> int:
        """How many more deliveries may start. While the breaker is open, strays of the time
        before it do not count."""
        allowed = self.breaker.allowance(now, self.route.concurrency)
        if self.breaker.open:
            return allowed
        return max(0, allowed - self.flying - self.offered)

    def wants_claim(self, now: float) -> bool:
        """Whether something may be waiting that could start now."""
        return (self.news or self.ready > 0 or self._due(now)) and self.free(now) > 0

    def _due(self, now: float) -> bool:
        return self.next_due is not None and self.next_due <= now

    def offers_suspect(self, now: float) -> bool:
        """Whether a job that may be poison can have its turn: in a paused route as the probe, where
        nothing else could be it."""
        if not self.breaker.open:
            return self.suspects > 0
        others = self.ready > 0 or self.next_due is not None
        return self.suspects > 0 and not others and self.breaker.allowance(now, 1) > 0

    def idle(self, now: float) -> bool:
        """Whether an update that arrives now would be the next to start."""
        return not (self.breaker.open or self.ready or self.news or self._due(now))

    def wakes_at(self, now: float) -> float | None:
        """When time alone lets a delivery start; None when only an event can."""
        if self.breaker.open and self.breaker.until > now:
            return self.breaker.until
        return self.next_due if self.free(now) > 0 else None


def policy_of(route: Route) -> Policy:
    """What a failure of a delivery means there."""
    return Policy(route.max_attempts, route.backoff, route.permanent_statuses)
