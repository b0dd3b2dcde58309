"""The judge of the crash run finds what died without a cause, and what took too long."""

import io
import logging
from dataclasses import replace

import pytest

from bench.crashing.processes import tracebacks
from bench.crashing.record import Dead, Process, Request, Span
from system.test_crash_judge import RULES, judged, request, sent
from twr.core.clock import Clock
from twr.edges.logs import Log, Style

REFUSED = frozenset({"shop"})


def failed(*times: float, process: int = 1) -> list[Request]:
    """Requests that were answered with 500."""
    return [request(1, at, 500, process=process) for at in times]


def died(reason: str, at: float = 10.0, crashes: int = 0) -> Dead:
    return Dead(1, "shop", reason, at, crashes)


def killed(*times: float) -> tuple[Process, ...]:
    """One process after the other of one name."""
    return tuple(Process(n, "a", at) for n, at in enumerate(times, 1))


# --- deaths -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("requests", "refused", "processes", "deserved"),
    [
        (failed(1.0, 2.0, 3.0), REFUSED, (Process(1, "a"),), True),
        (failed(1.0, 2.0), REFUSED, (Process(1, "a"),), False),
        (failed(1.0, 2.0, 3.0), frozenset(), (Process(1, "a"),), False),
        (failed(1.0, 2.0, 3.0), REFUSED, killed(3.005), False),
        (failed(1.0, 2.0, 3.0), REFUSED, killed(3.5), True),
    ],
    ids=["all made", "too few", "could succeed", "one ended by a kill", "killed afterwards"],
)
def test_attempts_have_to_be_made_and_to_be_hopeless(
    requests: list[Request],
    refused: frozenset[str],
    processes: tuple[Process, ...],
    deserved: bool,
) -> None:
    """A crash burns none, and what a service takes in the end does not run out of them."""
    update = replace(sent(1), refused=refused)
    verdict = judged([update], requests, processes=processes, dead=(died("attempts"),))
    assert verdict.unexplained_deaths == ([] if deserved else ["1/shop: attempts"])


@pytest.mark.parametrize(("status", "deserved"), [(400, True), (500, False)])
def test_a_refusal_for_good_has_to_be_seen(status: int, deserved: bool) -> None:
    """The target answered with a status that is."""
    verdict = judged([sent(1)], [request(1, 1.0, status)], dead=(died("permanent"),))
    assert verdict.unexplained_deaths == ([] if deserved else ["1/shop: permanent"])


@pytest.mark.parametrize(
    ("crashes", "processes", "deserved"),
    [
        (3, killed(1.0, 2.0, 3.0), True),
        (2, killed(1.0, 2.0, 3.0), False),
        (3, killed(1.0, 2.0), False),
        (3, killed(1.0, 2.0, 11.0), False),
        (3, (Process(1, "a", 1.0, ((0.2, 0.9),)), *killed(1.0, 2.0)[1:]), False),
        (3, (Process(1, "a", None, ((1.0, 8.0),)), *killed(1.0, 8.5, 9.0)[1:]), True),
    ],
    ids=["three", "two counted", "two kills", "one too late", "a short stop", "a long stop"],
)
def test_poison_takes_three_crashes(
    crashes: int, processes: tuple[Process, ...], deserved: bool
) -> None:
    """By the store's count and by the record of the kills."""
    verdict = judged([sent(1)], [], processes=processes, dead=(died("poison", crashes=crashes),))
    assert verdict.unexplained_deaths == ([] if deserved else ["1/shop: poison"])


def test_many_deaths_as_poison_are_no_chance() -> None:
    """Twenty kills explain one."""
    kills = killed(*(n / 10 for n in range(1, 21)))
    dead = tuple(Dead(n, "shop", "poison", 10.0, 3) for n in (1, 2))
    verdict = judged([sent(1), sent(2)], [], processes=kills, dead=dead)
    assert verdict.unexplained_deaths == ["2 died as poison in 20 kills"]


@pytest.mark.parametrize(
    ("at", "outage", "found"),
    [
        (150.0, (10.0, 100.0), []),
        (150.0, (10.0, 60.0), ["1/shop: expired"]),
        (100.0, (10.0, 100.0), ["1/shop: expired"]),
    ],
    ids=["an outage for most of its life", "time enough", "too early"],
)
def test_what_expires_had_no_time(at: float, outage: Span, found: list[str]) -> None:
    """A callback lives for 150 seconds, of which most were disturbed."""
    update = replace(sent(1), expires_after=150.0)
    verdict = judged([update], [], outages=(outage,), dead=(died("expired", at),))
    assert verdict.unexplained_deaths == found


def test_other_deaths_have_no_cause_here() -> None:
    """No route is ever full in a run, and a dead letter belongs to an update that was sent."""
    dead = (died("overflow"), Dead(9, "shop", "permanent", 10.0))
    verdict = judged([sent(1)], [], dead=dead)
    assert verdict.unexplained_deaths == ["1/shop: overflow", "9/shop: permanent"]


# --- time -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("took", "found"), [(4.9, []), (5.2, ["1/shop: 5.2 s though all was well"])]
)
def test_what_is_sent_when_all_is_well_is_prompt(took: float, found: list[str]) -> None:
    """After the last fault everything works again at once."""
    verdict = judged([replace(sent(1), calm=True)], [request(1, took - 0.01)])
    assert verdict.late == found


@pytest.mark.parametrize(
    ("route", "disturbed", "found"),
    [
        ("shop", {}, ["1/shop: 40.0 s without a disturbance"]),
        ("shop", {"outages": ((5.0, 15.0),)}, []),
        ("shop", {"outages": ((5.0, 10.0),)}, ["1/shop: 33.5 s without a disturbance"]),
        ("shop", {"processes": (Process(1, "a", killed=5.0),)}, []),
        ("shop", {"processes": (Process(1, "a", stops=((5.0, 6.0),)),)}, []),
        ("hanging", {"hangs": ((5.0, 15.0),)}, []),
        ("shop", {"hangs": ((5.0, 15.0),)}, ["1/shop: 40.0 s without a disturbance"]),
    ],
    ids=["nothing", "an outage", "a short one", "a kill", "a stop", "its hang", "another's hang"],
)
def test_what_takes_long_was_disturbed(
    route: str, disturbed: dict[str, tuple[object, ...]], found: list[str]
) -> None:
    """Twenty seconds over a lease are too long where nothing was wrong."""
    assert RULES.late == 31.0
    updates, requests = [sent(1, route)], [request(1, 39.99, route=route)]
    verdict = judged(updates, requests, **disturbed)  # type: ignore[arg-type]
    assert verdict.late == found


# --- logs -------------------------------------------------------------------------------------


def test_a_traceback_is_found_in_a_daemons_log() -> None:
    """As the daemon writes it to a file."""
    stream = io.StringIO()
    handler = Log(stream, Style.PLAIN, Clock(time=lambda: 1.0, monotonic=lambda: 1.0))
    log = logging.Logger("twr.supervisor")
    log.addHandler(handler)
    log.error("task started")
    try:
        raise ValueError("planted")
    except ValueError:
        log.exception("task crashed")
    handler.close()
    assert "ValueError: planted" in stream.getvalue()
    assert tracebacks(stream.getvalue()) == 1
