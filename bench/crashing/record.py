"""What a run writes down of itself: what was sent, what the targets saw, what was done meanwhile.

All times are seconds of one monotonic clock.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

Span = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Rules:
    """What the daemons were told, and how they have to behave; seconds.

    `settle`: how long a healthy process may take to settle what was answered; `back`: to notice
    that the store is back; `taken`: what lies between a lease that another process takes over and
    its request. `lapsed`: after so long without a heartbeat a process is taken for dead by one of
    its name. `prompt`: how long an update may take when all is well. `hanging`: the routes that
    hang at times, and `resumed` how long after it they are tried again.
    """

    timeout: float
    max_attempts: int
    unordered: frozenset[str] = frozenset()
    hanging: frozenset[str] = frozenset()
    settle: float = 0.75
    back: float = 1.5
    taken: float = 1.0
    lapsed: float = 5.0
    prompt: float = 5.0
    resumed: float = 4.0

    @property
    def lease(self) -> float:
        return self.timeout + 10.0

    @property
    def taken_over(self) -> float:
        """What a process held that is gone for good is with another one after this time."""
        return self.lease + 5.0

    @property
    def late(self) -> float:
        """So long nothing may take, times of disturbance not counted: a lease has run out by then,
        and the look for strays was there."""
        return self.lease + 20.0


@dataclass(frozen=True, slots=True)
class Sent:
    """An update as it was sent, first at `sent`, until it was answered with 2xx, at `acknowledged`
    (None: never). `expires_after` in seconds. `refused`: the routes that always answer it as their
    own fault (500), so that it has to die there. `calm`: sent when all was well."""

    update_id: int
    lane: str
    routes: tuple[str, ...]
    sent: float
    acknowledged: float | None
    expires_after: float = 86_400.0
    refused: frozenset[str] = frozenset()
    calm: bool = False


@dataclass(frozen=True, slots=True)
class Request:
    """What a target saw: the request came whole at `received`; at `ended` it was answered with
    `status`, or ended without an answer (None). `ended` None: it never did."""

    update_id: int
    route: str
    process: int
    received: float
    ended: float | None
    status: int | None

    @property
    def delivered(self) -> bool:
        return self.status is not None and 200 <= self.status < 300


@dataclass(frozen=True, slots=True)
class Process:
    """A process of an instance: when it was killed with -9, if it was, and when it was stopped."""

    number: int
    instance: str
    killed: float | None = None
    stops: tuple[Span, ...] = ()


@dataclass(frozen=True, slots=True)
class Dead:
    """A dead letter of the final store. `crashes`: those that the store counted against it."""

    update_id: int
    route: str
    reason: str
    died: float
    crashes: int = 0


@dataclass(frozen=True, slots=True)
class Record:
    """All of a run; `sent` in the order of sending, `requests` in the order of arrival. `outages`:
    the store was down or stopped. `stalls`: the targets themselves were held up, and what came
    then was seen late. `hangs`: when the hanging routes hung."""

    sent: Sequence[Sent]
    requests: Sequence[Request]
    processes: Sequence[Process]
    outages: Sequence[Span] = ()
    stalls: Sequence[Span] = ()
    dead: Sequence[Dead] = ()
    hangs: Sequence[Span] = ()


Key = tuple[int, str]


class Case:
    """A record by update and route."""

    def __init__(self, record: Record, rules: Rules) -> None:
        self.record = record
        self.rules = rules
        self.sent = {it.update_id: it for it in record.sent}
        self.processes = {it.number: it for it in record.processes}
        self.dead = {(it.update_id, it.route): it for it in record.dead}
        self.requests: dict[Key, list[Request]] = defaultdict(list)
        for request in record.requests:
            self.requests[request.update_id, request.route].append(request)

    def first_delivery(self, key: Key) -> float | None:
        """When it was first answered well."""
        found = (it.ended for it in self.requests.get(key, ()) if it.delivered)
        return min((at for at in found if at is not None), default=None)

    def done(self, key: Key) -> float | None:
        """When the update was first delivered there or died."""
        ends = [self.first_delivery(key), self.dead[key].died if key in self.dead else None]
        return min((at for at in ends if at is not None), default=None)

    def settled_by(self, process: Process, answered: float) -> float:
        """When the process must have settled what was answered then: times at which it was
        stopped, had no store, or had to share the machine with whatever held up the targets do not
        count."""
        at, left = answered, self.rules.settle
        outages = [(start, end + self.rules.back) for start, end in self.record.outages]
        for start, end in sorted([*process.stops, *outages, *self.record.stalls]):
            if end <= at:
                continue
            if start - at >= left:
                break
            left -= max(0.0, start - at)
            at = end
        return at + left


def length(spans: Iterable[Span], window: Span) -> float:
    """How much of the window the spans cover."""
    total, covered_to = 0.0, window[0]
    for start, end in sorted(spans):
        start, end = max(start, covered_to), min(end, window[1])
        if end > start:
            total += end - start
            covered_to = end
    return total
