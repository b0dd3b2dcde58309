"""What is measured side by side: runs alternate, A B A B, and ratios are taken pair by pair."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from bench import stats
from bench.load import Plan
from bench.report import Report
from bench.sides import UVLOOP, Setup
from bench.trial import Given, Measured, Shape, Trial, delivered_rate, lag, trial

Values = dict[str, float]
Column = Mapping[str, list[float]]
LAG_RATE = 300.0
HUNG_RATE = 200.0
# How long after a load its last deliveries may come to count, in seconds.
LAST_DELIVERIES = 5.0


@dataclass(frozen=True, slots=True)
class Length:
    """How often and how long: pairs, seconds of a window, seconds of warm-up before it."""

    pairs: int
    seconds: float
    warmup: float

    def plan(self, **more: float) -> Plan:
        """A load of that length."""
        rate = more.get("rate")
        chats = int(more.get("chats", 25))
        return Plan(0, self.seconds, self.warmup, rate=rate, chats=chats)


@dataclass(frozen=True, slots=True)
class Contender:
    """One of those that take turns. `work` measures a started trial."""

    name: str
    setup: Setup
    shape: Shape
    work: Callable[[Trial], Values]


def alternate(
    given: Given, report: Report, pairs: int, contenders: list[Contender]
) -> dict[str, dict[str, list[float]]]:
    """Runs in turn; for each contender its values by measure, one for each pair."""
    found: dict[str, dict[str, list[float]]] = {it.name: {} for it in contenders}
    for pair in range(pairs):
        for it in contenders:
            with trial(given, it.setup, it.shape) as made:
                values = it.work(made)
                lost = made.lost()
            report.problems += [f"{it.name}: {problem}" for problem in lost]
            if made.disturbed:
                report.disturbed.append(made.disturbed)
            for name, value in values.items():
                found[it.name].setdefault(name, []).append(value)
            said = " ".join(f"{name}={value:.4g}" for name, value in values.items())
            print(f"  {pair + 1}/{pairs} {it.name}: {said}", flush=True)
    return found


def _rates(made: Trial, measured: Measured, names: tuple[str, ...] | None = None) -> Values:
    came = made.deliveries()
    names = names or made.setup.names
    return {
        "accepted": measured.result.rate,
        "delivered": delivered_rate(came, measured.result, names),
        "cpu": measured.cpu_daemon,
    }


def _tell(report: Report, measure: str, unit: str, found: Mapping[str, Column], name: str) -> None:
    for side, columns in found.items():
        if name in columns:
            report.add(measure, side, unit, columns[name])


def _ratio(
    found: Mapping[str, Column], name: str, ours: str, theirs: str, other: str = ""
) -> float:
    return stats.ratio(found[ours][name], found[theirs][other or name])


def accepting(given: Given, report: Report, length: Length) -> None:
    """Accepting alone: the targets never answer, so that soon nothing is delivered any more."""

    def work(made: Trial) -> Values:
        made.start()
        full = made.load(length.plan())
        half = made.load(length.plan(rate=full.result.rate / 2)).result
        return {
            "accepted": full.result.rate,
            "p50": half.latency(50),
            "p99": half.latency(99),
            "cpu": full.cpu_daemon,
            "cpu of the store": full.cpu_store,
        }

    def contender(name: str, side: str, routes: int) -> Contender:
        setup = Setup(side, routes)
        return Contender(name, setup, Shape(hang=setup.names), work)

    found = alternate(
        given,
        report,
        length.pairs,
        [
            contender("twr", "twr", 1),
            contender("plain", "plain", 1),
            contender("bare", "bare", 1),
            contender(UVLOOP, UVLOOP, 1),
            contender("twr, 3 routes", "twr", 3),
        ],
    )
    _tell(report, "accept alone, 40 connections", "/s", found, "accepted")
    _tell(report, "accept latency at half that rate, p50", "ms", found, "p50")
    _tell(report, "accept latency at half that rate, p99", "ms", found, "p99")
    _tell(report, "CPU of the daemon per accept", "ms", found, "cpu")
    _tell(report, "CPU of the store per accept", "ms", found, "cpu of the store")
    report.bar("accept alone against plain", _ratio(found, "accepted", "twr", "plain"), 2.0)
    report.bar("accept alone against bare", _ratio(found, "accepted", "twr", "bare"), 0.85)
    on_uvloop = stats.ratios(found["twr"]["accepted"], found[UVLOOP]["accepted"])
    report.add("accept alone against bare on uvloop", "twr", "×", on_uvloop)
    three = _ratio(found, "accepted", "twr, 3 routes", "twr")
    report.bar("accept alone, three routes against one", three, 0.9)


def _at_once(given: Given, report: Report, length: Length, routes: int) -> dict[str, Column]:
    def work(made: Trial) -> Values:
        made.start()
        return _rates(made, made.load(length.plan()))

    contenders = [
        Contender(side, Setup(side, routes), Shape(), work)
        for side in ("twr", "plain", "bare", UVLOOP)
    ]
    found = alternate(given, report, length.pairs, contenders)
    word = "one route" if routes == 1 else f"{routes} routes"
    del found["bare"]["delivered"], found[UVLOOP]["delivered"]
    _tell(report, f"accept and deliver at once, {word}: accepted", "/s", found, "accepted")
    _tell(report, f"accept and deliver at once, {word}: delivered", "/s", found, "delivered")
    on_uvloop = stats.ratios(found["twr"]["delivered"], found[UVLOOP]["accepted"])
    report.add(f"delivered against bare on uvloop, {word}", "twr", "×", on_uvloop)
    return dict(found)


def delivering(given: Given, report: Report, length: Length) -> None:
    """Accepting as fast as it goes and delivering at once, targets of 0 ms, one route."""
    found = _at_once(given, report, length, 1)
    against_bare = _ratio(found, "delivered", "twr", "bare", "accepted")
    report.bar("at once: delivered against plain", _ratio(found, "delivered", "twr", "plain"), 3.5)
    report.bar("at once: accepted against plain", _ratio(found, "accepted", "twr", "plain"), 1.2)
    report.bar("at once: delivered against what bare accepts", against_bare, 0.5)


def routes(given: Given, report: Report, length: Length) -> None:
    """The same with three routes."""
    found = _at_once(given, report, length, 3)
    plain = _ratio(found, "delivered", "twr", "plain")
    bare = _ratio(found, "delivered", "twr", "bare", "accepted")
    report.bar("three routes at once: delivered against plain", plain, 7.0)
    report.bar("three routes at once: delivered against what bare accepts", bare, 1.0)


def slow(given: Given, report: Report, length: Length) -> None:
    """Targets of 50 ms against targets of 0 ms, with enough slots for both."""

    def work(made: Trial) -> Values:
        made.start()
        return _rates(made, made.load(length.plan()))

    setup = Setup("twr", 1, 256)
    found = alternate(
        given,
        report,
        length.pairs,
        [
            Contender("twr, 50 ms", setup, Shape(0.05), work),
            Contender("twr, 0 ms", setup, Shape(), work),
        ],
    )
    _tell(report, "at once, concurrency 256: delivered", "/s", found, "delivered")
    against = _ratio(found, "delivered", "twr, 50 ms", "twr, 0 ms")
    report.bar("50 ms targets against 0 ms, delivered", against, 0.85)


def hung(given: Given, report: Report, length: Length) -> None:
    """One of three targets never answers; what the other two get, at a rate that leaves the daemon
    some room: at saturation a target that takes nothing would make room for the others."""

    def work(made: Trial) -> Values:
        made.start()
        measured = made.load(length.plan(rate=HUNG_RATE))
        others = {name: it for name, it in made.deliveries().items() if name != "r2"}
        rates = _rates(made, measured, ("r0", "r1"))
        return rates | {"p99": lag(others, measured.result, 99)}

    setup = Setup("twr", 3)
    found = alternate(
        given,
        report,
        length.pairs,
        [
            Contender("twr, one hung", setup, Shape(hang=("r2",)), work),
            Contender("twr, none hung", setup, Shape(), work),
        ],
    )
    _tell(report, "two of three routes at 200/s: delivered", "/s", found, "delivered")
    _tell(report, "two of three routes at 200/s: lag, p99", "ms", found, "p99")
    kept = _ratio(found, "delivered", "twr, one hung", "twr, none hung")
    report.bar("one hung target of three: the others' deliveries", kept, 0.95)


def lagging(given: Given, report: Report, length: Length) -> None:
    """From POST to target at 300 updates a second, and what an update costs at that rate."""

    def work(made: Trial) -> Values:
        made.start()
        measured = made.load(length.plan(rate=LAG_RATE))
        came = made.all_delivered(len(measured.result.ids), LAST_DELIVERIES)
        return {
            "p50": lag(came, measured.result, 50),
            "p99": lag(came, measured.result, 99),
            "cpu": measured.cpu_daemon,
            "cpu of the store": measured.cpu_store,
        }

    contenders = [Contender(side, Setup(side), Shape(), work) for side in ("twr", "plain")]
    found = alternate(given, report, length.pairs, contenders)
    _tell(report, "lag from POST to target at 300/s, p50", "ms", found, "p50")
    _tell(report, "lag from POST to target at 300/s, p99", "ms", found, "p99")
    _tell(report, "CPU of the daemon per update at 300/s", "ms", found, "cpu")
    _tell(report, "CPU of the store per update at 300/s", "ms", found, "cpu of the store")
    for name in ("p50", "p99"):
        value = _ratio(found, name, "twr", "plain")
        report.bar(f"lag at 300/s, {name}, against plain", value, 0.6, most=True)


def busy(given: Given, report: Report, length: Length) -> None:
    """All updates in one chat, delivered in order, while accepting saturates."""

    def work(made: Trial) -> Values:
        made.start()
        return _rates(made, made.load(length.plan(chats=0)))

    contenders = [Contender(side, Setup(side), Shape(), work) for side in ("twr", "plain")]
    found = alternate(given, report, length.pairs, contenders)
    _tell(report, "one busy chat in order: delivered", "/s", found, "delivered")
    value = stats.median(found["twr"]["delivered"])
    report.bar("one busy chat in order: delivered", value, 300, unit="/s")
