"""What a backlog costs, how fast a start is, and how soon all is well again after a fault."""

import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from bench import stats
from bench.load import Result
from bench.machine import OTHERS, Child, python
from bench.measures import Contender, Length, Values, alternate
from bench.report import Report
from bench.sides import Setup
from bench.trial import Given, Shape, Trial, delivered_rate

FEW, MANY = 1_000, 200_000
PROCESSING = 10_000
QUEUED = 2_000
# The load under which the faults happen, in seconds; how much of the old rate is the full rate.
FAULTS = 12.0
STEP = 0.05
AGAIN = 0.9


def waiting(given: Given, report: Report, length: Length) -> None:
    """Accepting and delivering with 1,000 and with 200,000 waiting, over four routes."""

    def work(count: int) -> Callable[[Trial], Values]:
        def measure(made: Trial) -> Values:
            empty = made.store.used_memory()
            made.fill(count)
            stored = made.store.used_memory() - empty
            made.start()
            measured = made.load(length.plan())
            delivered = delivered_rate(made.deliveries(), measured.result, made.setup.names)
            return {
                "accepted": measured.result.rate,
                "delivered": delivered,
                "daemon": made.daemon.child.memory(),
                "store": stored / count * 100_000,
                "ready": made.daemon.started,
            }

        return measure

    setup = Setup("twr", 4)
    many, few = f"twr, {MANY:,}", f"twr, {FEW:,}"
    found = alternate(
        given,
        report,
        length.pairs,
        [
            Contender(many, setup, Shape(), work(MANY)),
            Contender(few, setup, Shape(), work(FEW)),
        ],
    )
    for side, columns in found.items():
        report.add("with so many waiting: accepted", side, "/s", columns["accepted"])
        report.add("with so many waiting: delivered", side, "/s", columns["delivered"])
        report.add("with so many waiting: memory of the daemon", side, "MB", columns["daemon"])
        report.add("with so many waiting: time to ready", side, "s", columns["ready"])
    report.add("memory of the store per 100,000 waiting", many, "MB", found[many]["store"])
    for name in ("accepted", "delivered"):
        value = stats.ratio(found[many][name], found[few][name])
        report.bar(f"200,000 waiting against 1,000: {name}", value, 0.9)
    daemon = stats.median(found[many]["daemon"])
    grown = daemon - stats.median(found[few]["daemon"])
    report.bar("200,000 waiting: the daemon grows by", grown, 15, most=True, unit="MB")
    report.bar("200,000 waiting: the daemon in all", daemon, 100, most=True, unit="MB")


def ready(given: Given, report: Report, length: Length) -> None:
    """From the start of the process to its taking traffic, and the start of a short command."""

    def work(made: Trial) -> Values:
        return {"seconds": made.start().started}

    contenders = [
        Contender("twr", Setup("twr"), Shape(), work),
        Contender("plain", Setup("plain"), Shape(), work),
        Contender("twr, embedded store", Setup("twr", embedded=True), Shape(), work),
    ]
    found = alternate(given, report, length.pairs, contenders)
    for side, columns in found.items():
        report.add("time to ready", side, "s", columns["seconds"])
    helped = [_seconds(given, "-m", "twr", "--help") for _ in range(length.pairs)]
    report.add("twr --help", "twr", "s", helped)


def _seconds(given: Given, *words: str) -> float:
    begun = time.monotonic()
    child = Child(python(*words), OTHERS, given.folder / "command.log")
    child.popen.wait(30)
    child_seconds = time.monotonic() - begun
    if child.popen.returncode != 0:
        raise subprocess.CalledProcessError(child.popen.returncode, words)
    return child_seconds


def recovery(given: Given, report: Report, length: Length) -> None:
    """A process died with 10,000 jobs in flight: the next one's time to ready, and to the end of
    their delivery."""

    def work(made: Trial) -> Values:
        made.fill(PROCESSING, "--claim")
        # The dead process' name is free once its heartbeat has lapsed.
        time.sleep(5.5)
        begun = time.time_ns()
        ready_after = made.start().started
        times = _all_delivered(made, PROCESSING)
        return {"ready": ready_after, "delivered": (max(times) - begun) / 1e9}

    contenders = [Contender("twr", Setup("twr", 4), Shape(), work)]
    found = alternate(given, report, min(length.pairs, 3), contenders)["twr"]
    report.add("10,000 in processing at the start: time to ready", "twr", "s", found["ready"])
    report.add("10,000 in processing: all delivered", "twr", "s", found["delivered"])


def queued(given: Given, report: Report, length: Length) -> None:
    """2,000 queued updates to a target of 50 ms, against what the concurrency allows."""

    def work(made: Trial) -> Values:
        made.fill(QUEUED)
        made.start()
        times = sorted(_all_delivered(made, QUEUED))
        seconds = (times[-1] - times[0]) / 1e9 + 0.05
        ideal = QUEUED / (made.setup.concurrency or 32) * 0.05
        return {"share": ideal / seconds}

    contenders = [
        Contender(f"twr, concurrency {n}", Setup("twr", 1, n), Shape(0.05), work) for n in (32, 256)
    ]
    found = alternate(given, report, min(length.pairs, 3), contenders)
    for side, columns in found.items():
        report.add("2,000 queued, 50 ms: share of the possible", side, "", columns["share"])


def _all_delivered(made: Trial, count: int) -> list[int]:
    came = made.all_delivered(count, 60.0)
    times = [at for it in came.values() for at in it.received_ns]
    if len(times) < count:
        raise TimeoutError(f"{count} deliveries: not within 60 s")
    return times


def faults(given: Given, report: Report, length: Length) -> None:
    """Under full load: the scripts are forgotten, the store is full for 0.3 s, it restarts.
    Seconds until both rates are again 0.9 of what they were."""

    def work(made: Trial) -> Values:
        made.start()
        running = made.begin(replace(length.plan(), seconds=FAULTS))
        time.sleep(length.warmup + 2.5)
        ends = {}
        for name, fault in (("flush", _flush), ("full", _full), ("restart", _restart)):
            fault(made)
            ends[name] = time.time_ns()
            time.sleep(2.5)
        result = running.result()
        return _recovered(made, result, ends)

    contenders = [Contender("twr", Setup("twr"), Shape(), work)]
    found = alternate(given, report, length.pairs, contenders)["twr"]
    words = {"flush": "SCRIPT FLUSH", "full": "0.3 s of a full store", "restart": "a store restart"}
    for name, word in words.items():
        figure = report.add(f"full rate again after {word}", "twr", "s", found[name])
        report.bar(f"full rate again after {word}", figure.median, 1.0, most=True, unit="s")


def _flush(made: Trial) -> None:
    made.store.client.script_flush()


def _full(made: Trial) -> None:
    made.store.client.config_set("maxmemory", "1")
    time.sleep(0.3)
    made.store.client.config_set("maxmemory", "0")


def _restart(made: Trial) -> None:
    made.store.stop()
    made.store.start()


def _recovered(made: Trial, result: Result, ends: dict[str, int]) -> Values:
    came = [at for it in made.deliveries().values() for at in it.received_ns]
    first = min(ends.values())
    found: Values = {}
    for name, end in ends.items():
        found[name] = max(_back(times, result, first, end) for times in (result.done_ns, came))
    return found


def _back(times: Sequence[int], result: Result, first: int, end: int) -> float:
    """Seconds after `end` from which half a second has 0.9 of the rate before the first fault."""
    before = sum(result.from_ns <= at < first for at in times) / ((first - result.from_ns) / 1e9)
    after = sorted(at for at in times if end <= at < end + 3_000_000_000)
    for step in range(int(2.0 / STEP) + 1):
        start = end + int(step * STEP * 1e9)
        if sum(start <= at < start + 500_000_000 for at in after) / 0.5 >= AGAIN * before:
            return step * STEP
    return float("nan")
