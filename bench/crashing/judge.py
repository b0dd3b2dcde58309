"""Judges a run by its own record: what was sent, what the targets saw, what was done meanwhile.

All times are seconds of one monotonic clock. A *delivery* is a request that its target answered
with 2xx. An update is *done* on a route at its first delivery or at its death, whichever is first.
Order holds in a lane of a route when no request of an update comes before all updates in front of
it are done: a later update may well be delivered after its predecessor is a dead letter, never
while that one is still to be tried.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

KILLED_IN_POST = "killed before the target had answered"
KILLED_AFTER_ANSWER = "killed between the target's answer and the settle"
OUTSLEPT = "a stopped process outslept its lease"
REPLACED_ASLEEP = "a stopped process was taken for dead by a newer one of its name"
TOO_LATE = "the target answered when the timeout was over"

Span = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Rules:
    """What the daemons were told. `settle`: how long a healthy process may take to settle what was
    answered; `back`: to notice that the store is back. `lapsed`: after so long without a heartbeat
    a process is taken for dead by one of its name. Seconds."""

    timeout: float
    max_attempts: int
    unordered: frozenset[str] = frozenset()
    settle: float = 2.0
    back: float = 1.5
    lapsed: float = 5.0

    @property
    def lease(self) -> float:
        return self.timeout + 10.0


@dataclass(frozen=True, slots=True)
class Sent:
    """An update as it was sent, first at `sent`, until it was answered with 2xx, at `acknowledged`
    (None: never). `expires_after` in seconds."""

    update_id: int
    lane: str
    routes: tuple[str, ...]
    sent: float
    acknowledged: float | None
    expires_after: float = 86_400.0


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
    """A dead letter of the final store."""

    update_id: int
    route: str
    reason: str
    died: float


@dataclass(frozen=True, slots=True)
class Record:
    """All of a run; `sent` in the order of sending, `requests` in the order of arrival. `outages`:
    the store was down or stopped. `stalls`: the targets themselves were held up, and what came
    then was seen late."""

    sent: Sequence[Sent]
    requests: Sequence[Request]
    processes: Sequence[Process]
    outages: Sequence[Span] = ()
    stalls: Sequence[Span] = ()
    dead: Sequence[Dead] = ()


@dataclass(slots=True)
class Verdict:
    """Counts of deliveries, and one line for each that is not as it has to be."""

    sent: int = 0
    acknowledged: int = 0
    expected: int = 0
    delivered: int = 0
    repeats: Counter[str] = field(default_factory=Counter)
    dead: Counter[str] = field(default_factory=Counter)
    slowest: float = 0.0
    unacknowledged: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    disordered: list[str] = field(default_factory=list)
    unexplained_repeats: list[str] = field(default_factory=list)
    unexplained_deaths: list[str] = field(default_factory=list)
    misrouted: list[str] = field(default_factory=list)

    @property
    def findings(self) -> Mapping[str, Sequence[str]]:
        """All that must be empty, by what it is called in a report."""
        return {
            "not acknowledged": self.unacknowledged,
            "lost": self.lost,
            "order violations": self.disordered,
            "unexplained repeats": self.unexplained_repeats,
            "unexplained deaths": self.unexplained_deaths,
            "misrouted": self.misrouted,
        }


Key = tuple[int, str]


class _Case:
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
        found = (it.ended for it in self.requests.get(key, ()) if it.delivered)
        return min((at for at in found if at is not None), default=None)

    def done(self, key: Key) -> float | None:
        """When the update was first delivered there or died."""
        ends = [self.first_delivery(key), self.dead[key].died if key in self.dead else None]
        return min((at for at in ends if at is not None), default=None)


def judge(record: Record, rules: Rules) -> Verdict:
    """The verdict on a run whose updates are all done."""
    case, verdict = _Case(record, rules), Verdict()
    _count(case, verdict)
    verdict.disordered = list(_disorder(case))
    for key in case.requests:
        _repeats(case, key, verdict)
    verdict.unexplained_deaths = [
        f"{it.update_id}/{it.route}: {it.reason}" for it in record.dead if not _deserved(case, it)
    ]
    return verdict


def _count(case: _Case, verdict: Verdict) -> None:
    for update in case.record.sent:
        verdict.sent += 1
        if update.acknowledged is None:
            verdict.unacknowledged.append(str(update.update_id))
        else:
            verdict.acknowledged += 1
            _count_deliveries(case, update, verdict)
    for update_id, route in case.requests:
        if update_id not in case.sent or route not in case.sent[update_id].routes:
            verdict.misrouted.append(f"{update_id}/{route}")


def _count_deliveries(case: _Case, update: Sent, verdict: Verdict) -> None:
    for route in update.routes:
        key = update.update_id, route
        delivered = case.first_delivery(key)
        verdict.expected += 1
        if delivered is not None:
            verdict.delivered += 1
            verdict.slowest = max(verdict.slowest, delivered - update.sent)
        if key in case.dead:
            verdict.dead[case.dead[key].reason] += 1
        elif delivered is None:
            verdict.lost.append(f"{update.update_id}/{route}")


# --- order --------------------------------------------------------------------------------------


def _disorder(case: _Case) -> Iterator[str]:
    """Each update of which something came too early. One that is lost counts as done here: it is
    told of as lost."""
    lanes: dict[tuple[str, str], list[int]] = defaultdict(list)
    for update in case.record.sent:
        for route in set(update.routes) - case.rules.unordered:
            lanes[update.lane, route].append(update.update_id)
    for (lane, route), ids in lanes.items():
        latest, behind = float("-inf"), None
        for update_id in ids:
            key = update_id, route
            if key in case.requests and case.requests[key][0].received < latest:
                yield f"{update_id}/{route} came before {behind} was done, in lane {lane}"
            done = case.done(key)
            if done is not None and done > latest:
                latest, behind = done, update_id


# --- repeats ------------------------------------------------------------------------------------


def _repeats(case: _Case, key: Key, verdict: Verdict) -> None:
    """Each request after one that was delivered, or while one is still open, has to be explained
    by the one before it."""
    for first, again in pairwise(case.requests[key]):
        still_open = first.ended is None or first.ended > again.received
        if not first.delivered and not still_open:
            continue
        reason = _explanation(case, first, again)
        if reason is not None:
            verdict.repeats[reason] += 1
        else:
            verdict.unexplained_repeats.append(_story(case, first, again))


def _story(case: _Case, first: Request, again: Request) -> str:
    seconds = again.received - first.received
    ended = "open" if first.ended is None else f"{first.ended - first.received:.3f} s"
    line = (
        f"{first.update_id}/{first.route}: by process {first.process} at {first.received:.3f} "
        f"({ended}), by process {again.process} {seconds:.3f} s later"
    )
    near = first.received - case.rules.lease, again.received
    stops = [
        f"{number} stopped {start:.3f}-{end:.3f}"
        for number in {first.process: 1, again.process: 1}
        for start, end in case.processes[number].stops
        if end > near[0] and start < near[1]
    ]
    return ", ".join([line, *stops])


def _explanation(case: _Case, first: Request, again: Request) -> str | None:
    rules, process = case.rules, case.processes[first.process]
    settled_by = _settled_by(case, process, first.ended or again.received)
    killed = process.killed
    if killed is not None and killed <= settled_by and killed <= again.received:
        answered = first.ended is not None and first.ended <= killed
        return KILLED_AFTER_ANSWER if answered else KILLED_IN_POST
    if again.received <= settled_by and (reason := _slept(case, process, first, again)):
        return reason
    late = case.processes[again.process]
    # Stopped before it sent what it had been given, a process sends it when it goes on.
    awake = any(end <= again.received for _, end in late.stops)
    if awake and (reason := _slept(case, late, again, first)):
        return reason
    return TOO_LATE if _took(case, first, again) > 0.9 * rules.timeout else None


def _took(case: _Case, first: Request, again: Request) -> float:
    """How long the caller may have waited for the first one's end: also since before a stop, where
    it sent the request only after that."""
    ended = first.ended or again.received
    before = first.received - case.rules.timeout, first.received
    stops = case.processes[first.process].stops
    asleep = sum(end - start for start, end in stops if before[0] <= end <= before[1])
    return ended - first.received + asleep + _length(case.record.stalls, before)


def _slept(case: _Case, process: Process, its: Request, other: Request) -> str | None:
    """How a stop of the process explains that another one took its job: nothing else may keep it
    from its settle so long that its lease ends, an outage of the store least of all."""
    rules = case.rules
    window = its.received - rules.lease, max(its.received, other.received)
    stopped = _length(process.stops, window)
    newer = case.processes[other.process]
    if stopped == 0 or newer is process:
        return None
    if newer.instance == process.instance and newer.number > process.number:
        lapsed = _length([*process.stops, *case.record.outages], window)
        return REPLACED_ASLEEP if lapsed >= rules.lapsed - 1.0 else None
    # What is left of a lease once its request was made and answered in the usual time.
    spare = rules.lease - rules.timeout - rules.settle
    blocked = _length([*process.stops, *case.record.outages], window)
    return OUTSLEPT if blocked >= spare else None


def _settled_by(case: _Case, process: Process, answered: float) -> float:
    """When the process must have settled what was answered then: times at which it was stopped or
    had no store do not count."""
    at, left = answered, case.rules.settle
    outages = [(start, end + case.rules.back) for start, end in case.record.outages]
    for start, end in sorted([*process.stops, *outages]):
        if end <= at:
            continue
        if start - at >= left:
            break
        left -= max(0.0, start - at)
        at = end
    return at + left


def _length(spans: Iterable[Span], window: Span) -> float:
    """How much of the window the spans cover."""
    total, covered_to = 0.0, window[0]
    for start, end in sorted(spans):
        start, end = max(start, covered_to), min(end, window[1])
        if end > start:
            total += end - start
            covered_to = end
    return total


# --- deaths -------------------------------------------------------------------------------------


def _deserved(case: _Case, dead: Dead) -> bool:
    """Whether the record has what the reason says."""
    requests = case.requests.get((dead.update_id, dead.route), ())
    update = case.sent.get(dead.update_id)
    if update is None:
        return False
    match dead.reason:
        case "attempts":
            return sum(not it.delivered for it in requests) >= case.rules.max_attempts
        case "permanent":
            return any(it.status == 400 for it in requests)
        case "expired":
            return dead.died - update.sent >= update.expires_after - 0.1
        case "poison":
            return _crashes(case, update.sent, dead.died) >= 3
    return False


def _crashes(case: _Case, start: float, end: float) -> int:
    """Kills, and stops so long that the process was taken for dead."""
    kills = [it.killed for it in case.record.processes if it.killed is not None]
    stops = [span for it in case.record.processes for span in it.stops]
    long = [at for at, until in stops if until - at >= case.rules.lapsed]
    return sum(start <= at <= end for at in [*kills, *long])
