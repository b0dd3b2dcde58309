"""Judges a run by its own record: what was sent, what the targets saw, what was done meanwhile.

All times are seconds of one monotonic clock. A *delivery* is a request that its target answered
with 2xx. An update is *done* on a route at its first delivery or at its death, whichever is first.
Order holds in a lane of a route when no request of an update comes before all updates in front of
it are done: a later update may well be delivered after its predecessor is a dead letter, never
while that one is still to be tried.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from bench.crashing.fate import late, unexplained_deaths
from bench.crashing.record import Case, Key, Process, Record, Request, Rules, Sent, length

KILLED_IN_POST = "killed before the target had answered"
KILLED_AFTER_ANSWER = "killed between the target's answer and the settle"
OUTSLEPT = "a stopped process outslept its lease"
REPLACED_ASLEEP = "a stopped process was taken for dead by a newer one of its name"
TOO_LATE = "the target answered when the timeout was over"


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
    late: list[str] = field(default_factory=list)
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
            "late": self.late,
            "misrouted": self.misrouted,
        }


def judge(record: Record, rules: Rules) -> Verdict:
    """The verdict on a run whose updates are all done."""
    case, verdict = Case(record, rules), Verdict()
    _count(case, verdict)
    verdict.disordered = list(_disorder(case))
    for key in case.requests:
        _repeats(case, key, verdict)
    verdict.unexplained_deaths = list(unexplained_deaths(case))
    verdict.late = list(late(case))
    return verdict


def _count(case: Case, verdict: Verdict) -> None:
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


def _count_deliveries(case: Case, update: Sent, verdict: Verdict) -> None:
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


def _disorder(case: Case) -> Iterator[str]:
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


def _repeats(case: Case, key: Key, verdict: Verdict) -> None:
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


def _story(case: Case, first: Request, again: Request) -> str:
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


def _explanation(case: Case, first: Request, again: Request) -> str | None:
    rules, process = case.rules, case.processes[first.process]
    settled_by = case.settled_by(process, first.ended or again.received)
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


def _took(case: Case, first: Request, again: Request) -> float:
    """How long the caller may have waited for the first one's end: also since before a stop, where
    it sent the request only after that."""
    ended = first.ended or again.received
    before = first.received - case.rules.timeout, first.received
    stops = case.processes[first.process].stops
    asleep = sum(end - start for start, end in stops if before[0] <= end <= before[1])
    return ended - first.received + asleep + length(case.record.stalls, before)


def _slept(case: Case, process: Process, its: Request, other: Request) -> str | None:
    """How a stop of the process explains that another one took its job: it slept when that one was
    given the job, and for so long that its lease or its heartbeat was over. An outage of the store
    alone explains nothing."""
    rules = case.rules
    newer = case.processes[other.process]
    if newer is process or not _asleep(case, process, other):
        return None
    window = its.received - rules.lease, max(its.received, other.received)
    blocked = length([*process.stops, *case.record.outages], window)
    if newer.instance == process.instance and newer.number > process.number:
        return REPLACED_ASLEEP if blocked >= rules.lapsed - 1.0 else None
    # What is left of a lease once its request was made and answered in the usual time.
    return OUTSLEPT if blocked >= rules.lease - rules.timeout - rules.settle else None


def _asleep(case: Case, process: Process, other: Request) -> bool:
    """Whether the process was stopped when another one was given what it then requested."""
    held = case.processes[other.process].stops
    before = other.received - case.rules.lease, other.received
    given = other.received - case.rules.taken - length([*held, *case.record.stalls], before)
    return any(start <= other.received and end >= given for start, end in process.stops)
