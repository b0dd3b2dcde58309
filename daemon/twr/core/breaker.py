"""Whether a route may deliver, by what its target has shown of itself."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class BreakerPolicy:
    """`failures` in a row open the breaker; the cooldowns are seconds."""

    failures: int
    cooldown: float
    max_cooldown: float


@dataclass(slots=True)
class Breaker:
    """The breaker of one route in one process. Times are monotonic seconds, passed in.

    Closed, it lets everything through. Open, nothing until `until`, then one probe at a time:
    a real answer closes it, and the route's share grows again from one; another sign that the
    target is away doubles the pause.
    """

    policy: BreakerPolicy
    open: bool = False
    until: float = 0.0
    _row: int = 0
    _cooldown: float = 0.0
    _probing: bool = False
    _share: int | None = field(default=None)

    @property
    def state(self) -> str:
        """`closed`, `open`, or `half-open` while a probe is out."""
        if not self.open:
            return "closed"
        return "half-open" if self._probing else "open"

    def allowance(self, now: float, concurrency: int) -> int:
        """How many deliveries may be in flight, those that are included (but no strays of the
        time before it opened: while open it is one, the probe, or none)."""
        if self.open:
            return 0 if self._probing or now < self.until else 1
        return concurrency if self._share is None else min(self._share, concurrency)

    def probe(self) -> None:
        """The probe is on its way."""
        self._probing = True

    def withdraw(self) -> None:
        """The probe came to nothing: it was not sent, or there was nothing to send."""
        self._probing = False

    def answered(self, concurrency: int) -> bool:
        """The target gave a real answer, whatever it was; True when this closed the breaker."""
        closed, self.open = self.open, False
        self._row = 0
        self._probing = False
        self._cooldown = 0.0
        if closed:
            self._share = 1
        elif self._share is not None:
            self._share = self._share + 1 if self._share < concurrency else None
        return closed

    def away(self, now: float, *, probe: bool, retry_after: float = 0.0) -> bool:
        """The target seems away; True when this opened the breaker. `retry_after` in seconds."""
        self._row += 1
        if self.open and not probe:
            return False
        if not self.open and self._row < self.policy.failures:
            return False
        opened = not self.open
        self.open = True
        self._probing = False
        doubled = self._cooldown * 2 or self.policy.cooldown
        self._cooldown = min(doubled, self.policy.max_cooldown)
        self.until = now + max(self._cooldown, retry_after)
        return opened
