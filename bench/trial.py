"""One run: a fresh store, fresh targets, one side, one or more loads, and the count of what came.

At its end the daemon is killed with -9, and every update that was answered with 202 must be found:
delivered to its route, or waiting in the store.
"""

import asyncio
import itertools
import json
import math
import shutil
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from bench import stats, wire
from bench.load import Plan, Result
from bench.machine import (
    DAEMON,
    OTHERS,
    Child,
    StoreServer,
    busy_seconds,
    free_port,
    listens,
    python,
    until,
)
from bench.sides import Daemon, Setup, waiting
from bench.target import Deliveries
from twr.edges.embedded import Embedded

IDS_PER_LOAD = 1_000_000


@dataclass(frozen=True, slots=True)
class Given:
    """What all runs of one call share."""

    server: str
    folder: Path
    ids: Iterator[int] = field(default_factory=lambda: itertools.count(wire.FIRST_ID, IDS_PER_LOAD))


@dataclass(frozen=True, slots=True)
class Shape:
    """How the targets behave: all answer after `delay` seconds but those of `hang`, never."""

    delay: float = 0.0
    hang: tuple[str, ...] = ()


@dataclass(slots=True)
class Measured:
    """A load, and the CPU milliseconds of an accepted update in daemon and store."""

    result: Result
    cpu_daemon: float
    cpu_store: float


class Trial:
    """The running parts of one run. `disturbed`: what share of the daemon's core others took."""

    def __init__(self, given: Given, setup: Setup, shape: Shape, folder: Path) -> None:
        self.given = given
        self.setup = setup
        self.folder = folder
        self.store = StoreServer(given.server, folder)
        self.target_port = free_port()
        delay = ("--delay-ms", str(shape.delay * 1000))
        hang = ("--hang", *shape.hang) if shape.hang else ()
        self.target = Child(
            python("-m", "bench.target", str(self.target_port), *delay, *hang),
            OTHERS,
            folder / "target.log",
        )
        until(lambda: listens(self.target_port), "the target listens")
        self._daemon: Daemon | None = None
        self._accepted: set[int] = set()
        self.disturbed = 0.0

    @property
    def daemon(self) -> Daemon:
        """The side that is measured."""
        assert self._daemon is not None
        return self._daemon

    def start(self) -> Daemon:
        """Start the side; it is measured from now on."""
        self._daemon = Daemon(self.setup, self.store, self.target_port, self.folder)
        return self._daemon

    def begin(self, plan: Plan) -> "Running":
        """Start a load, in a process of its own."""
        plan = replace(plan, port=self.daemon.port, first_id=next(self.given.ids))
        return Running(self, plan)

    def load(self, plan: Plan) -> Measured:
        """Run a load to its end."""
        return self.begin(plan).end()

    def count(self, result: Result) -> None:
        """These updates were accepted: none may be lost."""
        self._accepted.update(result.ids)

    def fill(self, updates: int, *options: str) -> None:
        """Let updates wait in the store, each for one of the routes in turn."""
        routes = ("--routes", *self.setup.names)
        first = next(self.given.ids)
        words = (str(self.store.port), str(updates), "--first-id", str(first), *routes, *options)
        child = Child(python("-m", "bench.fill", *words), OTHERS, self.folder / "fill.log")
        child.popen.wait(120)
        if child.popen.returncode != 0:
            child.check()

    def deliveries(self) -> dict[str, Deliveries]:
        """What the targets got so far."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.target_port}/report") as response:
            return {name: Deliveries(**it) for name, it in json.load(response).items()}

    def all_delivered(self, count: int, seconds: float) -> dict[str, Deliveries]:
        """What the targets got once it is so many, or after so long."""
        deadline = time.monotonic() + seconds
        while True:
            came = self.deliveries()
            enough = sum(len(it.ids) for it in came.values()) >= count
            if enough or time.monotonic() > deadline:
                return came
            time.sleep(0.25)

    def lost(self) -> list[str]:
        """Kill the daemon; what was accepted and is nowhere, and what came out of order."""
        self.daemon.child.end()
        if self.setup.side.startswith("bare"):
            return []
        came = self.deliveries()
        stored = waiting(self.setup, self.store)
        problems = []
        for name in self.setup.names:
            got = came.get(name, Deliveries())
            missing = self._accepted - set(got.ids) - stored[name]
            if missing:
                problems.append(f"{name}: {len(missing)} lost, such as {min(missing)}")
            if got.disordered:
                problems.append(f"{name}: {got.disordered} out of order")
        return problems

    def close(self) -> None:
        """End all of it."""
        if self._daemon is not None:
            self._daemon.child.end()
        if self.setup.embedded:
            asyncio.run(Embedded(self.folder / "state", 0).stop_leftover())
        self.target.end()
        self.store.child.end()


class Running:
    """A load under way."""

    def __init__(self, trial: Trial, plan: Plan) -> None:
        self._trial = trial
        self._plan = plan
        self._out = trial.folder / f"load-{plan.first_id}.json"
        given = {name.replace("_", "-"): value for name, value in asdict(plan).items()}
        words = [str(given.pop("port")), "--out", str(self._out)]
        for name, value in given.items():
            words += [] if value is None else [f"--{name}", str(value)]
        self.child = Child(
            python("-m", "bench.load", *words), OTHERS, trial.folder / f"load-{plan.first_id}.log"
        )

    def end(self) -> Measured:
        """Wait for its end. The CPU is taken over its middle, start-up and warm-up left out."""
        time.sleep(self._plan.warmup + 0.5)
        before = self._seconds()
        time.sleep(max(0.2, self._plan.seconds - 1.0))
        wall, busy, daemon, store = (
            after - then for after, then in zip(self._seconds(), before, strict=True)
        )
        result = self.result()
        self._trial.disturbed = max(self._trial.disturbed, (busy - daemon) / wall)
        done = sum(0 <= at / 1e9 - before[0] < wall for at in result.done_ns) or float("nan")
        return Measured(result, daemon / done * 1000, store / done * 1000)

    def _seconds(self) -> tuple[float, float, float, float]:
        daemon, store = self._trial.daemon.child, self._trial.store.child
        return time.time(), busy_seconds(DAEMON), daemon.cpu_seconds(), store.cpu_seconds()

    def result(self) -> Result:
        """What the load reports at its end."""
        self.child.popen.wait(self._plan.seconds + self._plan.warmup + 30)
        if not self._out.exists():
            self.child.check()
        result = Result(**json.loads(self._out.read_text("ascii")))
        self._trial.count(result)
        return result


@contextmanager
def trial(given: Given, setup: Setup, shape: Shape) -> Iterator[Trial]:
    """A run in a directory of its own, which is kept only when it fails."""
    folder = Path(tempfile.mkdtemp(prefix=f"{setup.side}-", dir=given.folder))
    made = Trial(given, setup, shape, folder)
    try:
        yield made
    finally:
        made.close()
    shutil.rmtree(folder)


def delivered_rate(came: dict[str, Deliveries], result: Result, names: tuple[str, ...]) -> float:
    """Deliveries a second to these routes in the load's window."""
    total = sum(
        result.from_ns <= at < result.until_ns
        for name in names
        for at in came.get(name, Deliveries()).received_ns
    )
    return total / ((result.until_ns - result.from_ns) / 1e9)


def lags(came: dict[str, Deliveries], result: Result) -> list[float]:
    """Milliseconds from the moment an update was due at us to its arrival at each target, of those
    due in the window; what did not arrive is infinitely late."""
    window = [
        (update_id, due)
        for update_id, due in zip(result.ids, result.due_ns, strict=True)
        if result.from_ns <= due < result.until_ns
    ]
    found = []
    for it in came.values():
        arrived = dict(zip(reversed(it.ids), reversed(it.received_ns), strict=True))
        found += [
            (arrived[update_id] - due) / 1e6 if update_id in arrived else math.inf
            for update_id, due in window
        ]
    return found


def lag(came: dict[str, Deliveries], result: Result, percent: float) -> float:
    """A percentile of the lags."""
    return stats.percentile(lags(came, result), percent)
