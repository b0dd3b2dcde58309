"""The judge of the crash run finds what is planted, and nothing else."""

from dataclasses import replace

import pytest

from bench.crashing.judge import (
    KILLED_AFTER_ANSWER,
    KILLED_IN_POST,
    OUTSLEPT,
    REPLACED_ASLEEP,
    TOO_LATE,
    Verdict,
    judge,
)
from bench.crashing.record import Dead, Process, Record, Request, Rules, Sent, Span

RULES = Rules(
    timeout=1.0,
    max_attempts=3,
    unordered=frozenset({"heap"}),
    hanging=frozenset({"hanging"}),
)
NONE: list[str] = []


def sent(update_id: int, *routes: str, lane: str = "x", at: float = 0.0) -> Sent:
    """An update for shop, acknowledged after a tenth of a second."""
    return Sent(update_id, lane, routes or ("shop",), at, at + 0.1)


def request(
    update_id: int,
    received: float,
    status: int | None = 200,
    *,
    route: str = "shop",
    process: int = 1,
    took: float | None = 0.01,
) -> Request:
    """A request that ended after a hundredth of a second; `took` None: it never did."""
    return Request(
        update_id, route, process, received, None if took is None else received + took, status
    )


def judged(
    updates: list[Sent],
    requests: list[Request],
    *,
    processes: tuple[Process, ...] = (Process(1, "a"), Process(2, "b")),
    outages: tuple[Span, ...] = (),
    stalls: tuple[Span, ...] = (),
    dead: tuple[Dead, ...] = (),
    hangs: tuple[Span, ...] = (),
) -> Verdict:
    return judge(Record(updates, requests, processes, outages, stalls, dead, hangs), RULES)


def findings(verdict: Verdict) -> dict[str, list[str]]:
    """Those that are not empty."""
    return {name: list(lines) for name, lines in verdict.findings.items() if lines}


def test_a_run_without_faults_is_clean() -> None:
    """All delivered once and in order: every figure, and no finding."""
    verdict = judged(
        [sent(1), sent(2, "shop", "heap", at=1.0)],
        [request(1, 0.5), request(2, 1.5), request(2, 1.6, route="heap")],
    )
    assert findings(verdict) == {}
    assert (verdict.sent, verdict.acknowledged) == (2, 2)
    assert (verdict.expected, verdict.delivered) == (3, 3)
    assert dict(verdict.repeats) == {}
    assert verdict.slowest == pytest.approx(0.61)


def test_what_is_neither_delivered_nor_dead_is_lost() -> None:
    """Also when it was tried, and when another route has it."""
    verdict = judged(
        [sent(1), sent(2), sent(3, "shop", "heap")],
        [request(2, 0.5, 500), request(3, 1.0, route="heap")],
    )
    assert findings(verdict) == {"lost": ["1/shop", "2/shop", "3/shop"]}


def test_what_was_never_acknowledged_is_told_apart() -> None:
    """It is no loss of ours, but the run can't have ended well."""
    verdict = judged([replace(sent(1), acknowledged=None)], [])
    assert findings(verdict) == {"not acknowledged": ["1"]}


def test_a_delivery_to_a_route_that_does_not_take_it() -> None:
    """Or of an update that was never sent."""
    verdict = judged([sent(1)], [request(1, 0.5), request(1, 0.6, route="heap"), request(9, 1.0)])
    assert findings(verdict) == {"misrouted": ["1/heap", "9/shop"]}


# --- order --------------------------------------------------------------------------------------


def test_reordered_deliveries_are_found() -> None:
    """The second of a chat came first."""
    verdict = judged([sent(1), sent(2)], [request(2, 0.5), request(1, 0.6)])
    assert findings(verdict) == {"order violations": ["2/shop came before 1 was done, in lane x"]}


def test_a_request_beside_its_predecessor_is_found() -> None:
    """Two of a lane in flight at once, though the first came first and was answered first."""
    verdict = judged([sent(1), sent(2)], [request(1, 0.5, took=0.3), request(2, 0.7, took=0.3)])
    assert findings(verdict) == {"order violations": ["2/shop came before 1 was done, in lane x"]}


def test_a_failed_request_that_came_too_early_is_found() -> None:
    """The order holds for every request, not only for those that were answered well."""
    verdict = judged([sent(1), sent(2)], [request(2, 0.5, 500), request(1, 0.6), request(2, 0.7)])
    assert findings(verdict) == {"order violations": ["2/shop came before 1 was done, in lane x"]}


@pytest.mark.parametrize(
    ("updates", "route"),
    [
        ([sent(1), sent(2, lane="y")], "shop"),
        ([sent(1, "heap"), sent(2, "heap")], "heap"),
    ],
    ids=["another lane", "a route without order"],
)
def test_order_holds_within_a_lane_of_an_ordered_route(updates: list[Sent], route: str) -> None:
    """Elsewhere anything may come first."""
    verdict = judged(updates, [request(2, 0.5, route=route), request(1, 0.6, route=route)])
    assert findings(verdict) == {}


@pytest.mark.parametrize(("came", "found"), [(5.1, []), (4.9, ["2/shop"])])
def test_a_lane_goes_on_when_its_head_is_dead(came: float, found: list[str]) -> None:
    """The next may come after the death, never before it."""
    refused = [request(1, at, 500) for at in (1.0, 2.0, 4.0)]
    verdict = judged(
        [replace(sent(1), refused=frozenset({"shop"})), sent(2)],
        [*refused, request(2, came)],
        dead=(Dead(1, "shop", "attempts", 5.0),),
    )
    assert [line.split()[0] for line in verdict.disordered] == found
    assert dict(verdict.dead) == {"attempts": 1}


def test_a_late_repeat_is_no_disorder() -> None:
    """The first delivery counts: what comes again after its successor came in order before."""
    verdict = judged(
        [sent(1), sent(2)],
        [request(1, 0.5), request(2, 1.0), request(1, 1.5, process=2)],
        processes=(Process(1, "a", killed=0.6), Process(2, "b")),
    )
    assert verdict.disordered == NONE


# --- repeats ------------------------------------------------------------------------------------


def test_a_planted_duplicate_is_found() -> None:
    """Nobody was killed or stopped: there is no reason for a second delivery."""
    verdict = judged([sent(1)], [request(1, 0.5), request(1, 0.75, process=2)])
    assert findings(verdict) == {
        "unexplained repeats": [
            "1/shop: by process 1 at 0.500 (0.010 s), by process 2 0.250 s later"
        ]
    }


def test_two_requests_at_once_are_found() -> None:
    """The first was still open, and its process well."""
    verdict = judged([sent(1)], [request(1, 0.5, took=0.6), request(1, 0.75, process=2)])
    assert len(verdict.unexplained_repeats) == 1


def test_a_failed_attempt_may_be_repeated() -> None:
    """That is no second delivery."""
    verdict = judged([sent(1)], [request(1, 0.5, 500), request(1, 0.75, None), request(1, 0.9)])
    assert findings(verdict) == {}
    assert dict(verdict.repeats) == {}


@pytest.mark.parametrize(
    ("killed", "again", "reason"),
    [
        (0.505, 3.0, KILLED_IN_POST),
        (0.6, 3.0, KILLED_AFTER_ANSWER),
        (1.2, 3.0, KILLED_AFTER_ANSWER),
        (1.3, 3.0, None),
        (0.6, 0.55, None),
    ],
    ids=["in mid-POST", "after the answer", "just before", "long settled", "repeated before"],
)
def test_a_kill_explains_what_was_not_settled(
    killed: float, again: float, reason: str | None
) -> None:
    """Within the time in which a process that is well settles."""
    verdict = judged(
        [sent(1)],
        [request(1, 0.5), request(1, again, process=2)],
        processes=(Process(1, "a", killed), Process(2, "b")),
    )
    assert dict(verdict.repeats) == ({reason: 1} if reason else {})
    assert len(verdict.unexplained_repeats) == (0 if reason else 1)


def test_an_outage_gives_a_process_more_time_to_be_killed_in() -> None:
    """It could not settle while the store was away."""
    verdict = judged(
        [sent(1)],
        [request(1, 0.5), request(1, 12.0, process=2)],
        processes=(Process(1, "a", killed=9.0), Process(2, "b")),
        outages=((1.0, 8.0),),
    )
    assert dict(verdict.repeats) == {KILLED_AFTER_ANSWER: 1}


@pytest.mark.parametrize(
    ("stop", "again", "instance", "reason"),
    [
        ((0.51, 14.0), 12.0, "b", OUTSLEPT),
        ((0.51, 4.0), 3.0, "b", None),
        ((0.51, 8.0), 7.0, "a", REPLACED_ASLEEP),
        ((0.51, 3.0), 2.5, "a", None),
        ((14.0, 30.0), 12.0, "b", None),
        ((0.51, 10.6), 12.5, "b", None),
    ],
    ids=["a lease", "too short", "a heartbeat", "beats again", "only later", "awake by then"],
)
def test_a_stop_explains_a_lease_that_ran_out(
    stop: tuple[float, float], again: float, instance: str, reason: str | None
) -> None:
    """Only when it was long enough, and before the repeat."""
    verdict = judged(
        [sent(1)],
        [request(1, 0.5), request(1, again, process=2)],
        processes=(Process(1, "a", stops=(stop,)), Process(2, instance)),
    )
    assert dict(verdict.repeats) == ({reason: 1} if reason else {})
    assert len(verdict.unexplained_repeats) == (0 if reason else 1)


@pytest.mark.parametrize(("ends", "reason"), [(14.0, OUTSLEPT), (8.0, None)])
def test_a_stop_in_an_outage_explains_only_what_was_taken_meanwhile(
    ends: float, reason: str | None
) -> None:
    """The store is away for most of the lease: the process must still sleep when it ends."""
    verdict = judged(
        [sent(1)],
        [request(1, 0.5), request(1, 13.0, process=2)],
        processes=(Process(1, "a", stops=((7.9, ends),)), Process(2, "b")),
        outages=((0.6, 9.0),),
    )
    assert dict(verdict.repeats) == ({reason: 1} if reason else {})
    assert len(verdict.unexplained_repeats) == (0 if reason else 1)


def test_a_stop_explains_no_repeat_by_the_same_process() -> None:
    """It had the answer, or could have read it."""
    verdict = judged(
        [sent(1)],
        [request(1, 0.5), request(1, 16.0)],
        processes=(Process(1, "a", stops=((0.51, 15.5),)),),
    )
    assert len(verdict.unexplained_repeats) == 1


def test_an_outage_explains_no_repeat() -> None:
    """However long the store was away, what was answered is settled when it is back."""
    verdict = judged(
        [sent(1)],
        [request(1, 0.5), request(1, 16.0, process=2)],
        outages=((0.6, 15.0),),
    )
    assert len(verdict.unexplained_repeats) == 1


def test_an_answer_after_the_timeout_is_the_targets_own_fault() -> None:
    """It was given up meanwhile."""
    verdict = judged([sent(1)], [request(1, 0.5, took=1.2), request(1, 2.0)])
    assert dict(verdict.repeats) == {TOO_LATE: 1}
    assert verdict.unexplained_repeats == NONE


@pytest.mark.parametrize(
    ("stops", "other", "reason"),
    [
        (((0.2, 13.0),), Process(1, "b"), OUTSLEPT),
        (((0.2, 13.5),), Process(1, "b"), None),
        (((6.0, 13.0),), Process(3, "a"), REPLACED_ASLEEP),
        (((6.0, 13.0),), Process(1, "a"), None),
        ((), Process(1, "b"), None),
    ],
    ids=["sends late", "still asleep", "replaced", "taken by an older one", "awake"],
)
def test_a_process_that_slept_before_its_request_sends_it_late(
    stops: tuple[tuple[float, float], ...], other: Process, reason: str | None
) -> None:
    """Another had the job and delivered it meanwhile."""
    verdict = judged(
        [sent(1)],
        [request(1, 12.0, process=other.number), request(1, 13.2, process=2)],
        processes=(other, Process(2, "a", stops=stops)),
    )
    assert dict(verdict.repeats) == ({reason: 1} if reason else {})
    assert len(verdict.unexplained_repeats) == (0 if reason else 1)


def test_a_target_that_was_held_up_saw_the_request_late() -> None:
    """It was answered at once, but had waited for longer than the timeout by then."""
    verdict = judged([sent(1)], [request(1, 2.0), request(1, 2.5)], stalls=((0.8, 1.95),))
    assert dict(verdict.repeats) == {TOO_LATE: 1}


@pytest.mark.parametrize(("wakes", "known"), [(1.95, True), (0.5, False)])
def test_a_process_that_slept_since_its_attempt_began_gives_it_up(
    wakes: float, known: bool
) -> None:
    """The time of the attempt was over when it sent the request, right after it woke."""
    verdict = judged(
        [sent(1)],
        [request(1, 2.0), request(1, 6.0)],
        processes=(Process(1, "a", stops=((wakes - 3.0, wakes),)),),
    )
    assert dict(verdict.repeats) == ({TOO_LATE: 1} if known else {})
    assert len(verdict.unexplained_repeats) == (0 if known else 1)
