"""The crash run: numbered updates for a set time, while daemons and store are killed and stopped.

    python bench/crash.py --seconds 600 --instances 2 --seed 7 --store redis

Then everything is let run, a last batch is sent that has to be prompt, and what was sent is
compared with what the targets saw and what the store still holds. Exits with 1 when anything was
lost, stuck, late, out of order, or repeated or dead without a reason. A seed chooses the faults
and their moments; what they meet is up to the machine.
"""
# ruff: noqa: E402

import argparse
import asyncio
import json
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
sys.path.insert(0, str(ROOT / "daemon"))

from bench.crashing.faults import Faults, Fleet
from bench.crashing.final import MORE_MEMORY, Final, dead, stuck
from bench.crashing.judge import judge
from bench.crashing.processes import EmbeddedStore, Store
from bench.crashing.record import Dead, Record, Span
from bench.crashing.report import Report
from bench.crashing.targets import Mood, Targets, change_mood, watch_stalls
from bench.crashing.telegram import Telegram
from bench.crashing.updates import RULES

# How long the last updates may take to be acknowledged once all is well again, seconds.
LAST_ANSWERS = 60.0
# How many updates are sent then, and what part of those planned have to have been acknowledged
# before: a run that hardly sent anything shows nothing.
CALM = 100
LEAST = 0.1


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do; `rate` in updates a second, `every` the mean seconds between faults."""

    seconds: float
    instances: int
    seed: int
    store: str
    rate: float
    chats: int
    every: float


@dataclass(slots=True)
class Run:
    """The parts of one run, in a directory of its own."""

    plan: Plan
    directory: Path
    telegram: Telegram = field(init=False)
    targets: Targets = field(init=False)
    store: Store = field(init=False)
    fleet: Fleet = field(init=False)
    faults: Faults = field(init=False)
    stalls: list[Span] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        plan, path = self.plan, self.directory
        embedded = plan.store == "embedded"
        self.store = EmbeddedStore(path / "s") if embedded else Store(plan.store, path / "s")
        self.fleet = Fleet(self.store, 0, path)
        self.telegram = Telegram(
            random.Random(plan.seed), self.fleet.addresses, plan.chats, plan.rate
        )
        self.targets = Targets(Mood(random.Random(plan.seed + 1)), self.telegram.bodies)
        self.faults = Faults(self.fleet, random.Random(plan.seed + 2), plan.every)

    async def run(self) -> Report:
        """Do it all; the report."""
        await self.targets.open()
        watching = asyncio.create_task(watch_stalls(self.stalls))
        self.fleet.target_port = self.targets.port
        try:
            await self.store.start()
            for _ in range(self.plan.instances):
                await self.fleet.add()
            await self.fleet.mend()
            return await self._run()
        finally:
            await self.fleet.close()
            await self.store.close()
            await self.targets.close()
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)

    async def _run(self) -> Report:
        before = await self._memory()
        over = asyncio.Event()
        sending = asyncio.create_task(self.telegram.run(over))
        moods = asyncio.create_task(change_mood(self.targets.mood))
        try:
            await self.faults.run(self.plan.seconds)
            over.set()
            self.targets.mood.calm = True
            await self.fleet.mend()
            await asyncio.wait({sending}, timeout=LAST_ANSWERS)
        finally:
            for task in (sending, moods):
                task.cancel()
            ends = await asyncio.gather(sending, moods, return_exceptions=True)
        self.broken += [repr(it) for it in ends if isinstance(it, Exception)]
        try:
            async with asyncio.timeout(LAST_ANSWERS):
                await self.telegram.run_calm(CALM)
        except TimeoutError:
            self.broken.append("the last batch was not acknowledged")
        return await self._judged(before)

    def _too_little(self) -> list[str]:
        least = LEAST * self.plan.rate * self.plan.seconds
        count = len(self.telegram.acknowledged)
        return [] if count >= least else [f"{count} acknowledged of at least {least:.0f}"]

    async def _memory(self) -> int:
        async with Final(self.store.url) as final:
            return await final.memory()

    async def _judged(self, memory_before: int) -> Report:
        async with Final(self.store.url) as final:
            began = time.monotonic()
            await final.settled()
            settled = time.monotonic() - began
            picture = await final.picture()
            left = await final.empty(picture.dead)
            grown = await final.memory() - memory_before
        await self.fleet.close()
        too_much = [f"{grown} bytes"] if grown > MORE_MEMORY else []
        return Report(
            plan=asdict(self.plan),
            verdict=judge(self._record(dead(picture)), RULES),
            beside={
                "stuck": stuck(picture),
                "left in the store": left,
                "memory not given back": too_much,
                "altered": self.targets.altered,
                "strange answers": self.telegram.strange,
                **self.fleet.findings(),
                "not done in time": self.faults.failed,
                "broken in the run itself": [*self.broken, *self._too_little()],
            },
            faults=self.faults.done,
            answers=self.telegram.answers,
            figures={
                "requests_to_targets": len(self.targets.seen),
                "settled_after_seconds": round(settled, 1),
                "store_grown_kib": grown // 1024,
                **self.fleet.figures(),
            },
        )

    def _record(self, dead: Sequence[Dead]) -> Record:
        return Record(
            sent=self.telegram.record(),
            requests=self.targets.requests(),
            processes=[daemon.record() for daemon in self.fleet.all],
            outages=self.store.outages.spans,
            stalls=self.stalls,
            dead=dead,
            hangs=self.targets.mood.hung,
        )


def main(arguments: Sequence[str]) -> int:
    """The command line; the exit code."""
    plan, machine = _given(arguments)
    # A short name: the path of a unix socket has to fit.
    directory = Path(tempfile.mkdtemp(prefix="crash-"))
    report = asyncio.run(Run(plan, directory).run())
    print(json.dumps(report.as_json(), indent=1) if machine else report.as_text())
    if report.clean:
        shutil.rmtree(directory)
        return 0
    print(f"logs: {directory}", file=sys.stderr)
    return 1


def _given(arguments: Sequence[str]) -> tuple[Plan, bool]:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--instances", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--store", choices=("redis", "valkey", "embedded"), default="valkey")
    parser.add_argument("--rate", type=float, default=40.0, help="updates a second")
    parser.add_argument("--chats", type=int, default=30)
    parser.add_argument("--every", type=float, default=5.0, help="mean seconds between faults")
    parser.add_argument("--json", action="store_true", help="the report as JSON")
    given = vars(parser.parse_args(arguments))
    machine = given.pop("json")
    if given["store"] == "embedded" and given["instances"] > 1:
        parser.error("an embedded store serves one instance")
    return Plan(**given), machine


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
