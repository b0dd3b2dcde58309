"""What is broken during a run, at random: processes killed, stopped, doubled, replaced."""

import asyncio
import itertools
import random
import string
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench.crashing.processes import Daemon, EmbeddedStore, Store, quiet_host, until
from bench.crashing.updates import RULES

# Does its work from begin to end; False when there was nothing to break.
Fault = Callable[[], Awaitable[bool]]
# How long those that had no turn in the time of the run may take, seconds.
PATIENCE = 60.0
NEED_READINESS = {
    "daemon ended",
    "daemon killed for good, another started",
    "second process of a name",
    "second process of a stopped one's name",
}


@dataclass(slots=True)
class Fleet:
    """All daemons of a run. `current`: the process that each instance's name belongs to."""

    store: Store
    target_port: int
    directory: Path
    host: str = field(default_factory=quiet_host)
    current: dict[str, Daemon] = field(default_factory=dict)
    all: list[Daemon] = field(default_factory=list)
    refused_to_end: list[str] = field(default_factory=list)
    _names: "itertools.cycle[str]" = field(
        default_factory=lambda: itertools.cycle(string.ascii_lowercase)
    )

    async def add(self) -> None:
        """Start an instance of a new name."""
        await self.start(next(self._names))

    async def start(self, instance: str) -> Daemon:
        """Start a process of this name, which takes the name over; wait for nothing."""
        daemon = Daemon(len(self.all) + 1, instance, self.directory, self.host)
        self.all.append(daemon)
        self.current[instance] = daemon
        await daemon.start(self.target_port, self.store.settings(self.directory))
        return daemon

    def addresses(self) -> Sequence[str]:
        """Where the balancer sends requests: to all that were started, dead or alive."""
        return [f"{daemon.host}:{daemon.port}" for daemon in self.current.values()]

    def running(self) -> list[Daemon]:
        """The processes that are neither dead, stopped nor about to end."""
        found = self.current.values()
        return [it for it in found if it.running and not it.stopped and it.exit_expected is None]

    async def mend(self) -> None:
        """Let everything run again, and wait until it says that it does."""
        for daemon in self.all:
            if daemon.stopped:
                daemon.go_on()
        for name, daemon in list(self.current.items()):
            if daemon.exit_expected is not None:
                daemon.kill()
            if daemon.exit_expected is not None or not daemon.running:
                await self.start(name)
        for daemon in self.current.values():
            await until(daemon.ready, f"process {daemon.number} is ready")

    def findings(self) -> dict[str, list[str]]:
        """What the processes did that none should, once all have ended."""
        ends = [it.complaint() for it in self.all]
        return {
            "unexpected ends": [*self.refused_to_end, *(it for it in ends if it is not None)],
            "tracebacks": [f"process {it.number}" for it in self.all if it.tracebacks()],
        }

    def figures(self) -> dict[str, float]:
        """What the processes used."""
        return {
            "processes": len(self.all),
            "daemon_memory_mib": max(it.most_memory for it in self.all) // 2**20,
            "log_lines": sum(it.log_lines() for it in self.all),
        }

    async def close(self) -> None:
        """End all that runs: those of the end cleanly, what is left by force."""
        for daemon in self.all:
            if daemon.running and daemon.exit_expected is None:
                daemon.measure()
                daemon.terminate()
        for daemon in self.all:
            if daemon.running:
                try:
                    await daemon.ended()
                except TimeoutError:
                    self.refused_to_end.append(f"process {daemon.number} does not end on SIGTERM")
                    daemon.kill()
                    await daemon.ended()


@dataclass(slots=True)
class Faults:
    """`run` breaks something every `every` seconds, each kind once, then by chance. What was done
    is counted in `done`; in `failed` is what the processes did not do in time."""

    fleet: Fleet
    random: random.Random
    every: float
    done: Counter[str] = field(default_factory=Counter)
    failed: list[str] = field(default_factory=list)
    _owed: list[str] = field(default_factory=list)
    _under_way: set[asyncio.Task[None]] = field(default_factory=set)
    _store_busy: bool = False
    _ends: float = 0.0

    async def run(self, seconds: float) -> None:
        """Break things for so long, and until each kind has had its turn: a slow machine has time
        for few. Nothing, where the time is too short for one. At the end all has ended."""
        self._ends = time.monotonic() + seconds
        self._owed = [name for name, _, _ in self._choices()] if self.every < seconds else []
        self.random.shuffle(self._owed)
        # From the end: first those that need a process that is ready, which later is rare.
        self._owed.sort(key=lambda name: name in NEED_READINESS)
        while (left := self._ends - time.monotonic()) > 0:
            pause = self.random.expovariate(1 / self.every)
            await asyncio.sleep(min(pause, left))
            if pause < left:
                self._begin()
        await asyncio.gather(*self._under_way)
        while self._owed:
            self._begin()
            await asyncio.gather(*self._under_way)

    def _begin(self) -> None:
        choices = self._choices()
        names, weights = zip(*((name, weight) for name, weight, _ in choices), strict=True)
        owed = self._owed.pop() if self._owed else None
        name = owed or self.random.choices(names, weights)[0]
        fault = next(it for known, _, it in choices if known == name)
        task = asyncio.create_task(self._count(name, fault, again=owed is not None))
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    def _choices(self) -> list[tuple[str, int, Fault]]:
        found: list[tuple[str, int, Fault]] = [
            ("daemon killed", 10, self._kill),
            ("daemon ended", 3, self._end),
            ("daemon stopped", 5, self._stop_shortly),
            ("daemon stopped for longer than a lease", 2, self._stop_long),
            ("store killed", 4, self._kill_store),
            ("store stopped", 3, self._stop_store),
            ("everything killed", 1, self._kill_all),
        ]
        if not isinstance(self.fleet.store, EmbeddedStore):
            found += [
                ("store away for longer than a lease", 1, self._kill_store_long),
                ("second process of a name", 3, self._double),
                ("second process of a stopped one's name", 1, self._double_stopped),
                ("daemon killed for good, another started", 2, self._replace),
            ]
        return found

    async def _count(self, name: str, fault: Fault, *, again: bool) -> None:
        """Do it once; `again` where there was nothing to break, until there is."""
        try:
            found = await fault()
            while again and not found and time.monotonic() < self._ends + PATIENCE:
                await self._pause(0.2, 0.4)
                found = await fault()
            if found:
                self.done[name] += 1
            elif again:
                self.failed.append(f"{name}: there was never anything to break")
        except TimeoutError as error:
            self.failed.append(f"{name}: {str(error) or 'the process does not end'}")
        except Exception as error:
            self.failed.append(f"{name}: {error!r}")

    def _one(self) -> Daemon | None:
        running = self.fleet.running()
        return self.random.choice(running) if running else None

    async def _one_ready(self) -> Daemon | None:
        """One that is no longer starting: a process is ended by SIGTERM, and has its name, only
        from a certain moment on."""
        found = self._one()
        ready = found is not None and await found.ready()
        return found if ready and found in self.fleet.running() else None

    async def _pause(self, least: float, most: float) -> None:
        await asyncio.sleep(self.random.uniform(least, most))

    # --- daemons ----------------------------------------------------------------------------

    async def _kill(self) -> bool:
        daemon = self._one()
        if daemon is None:
            return False
        daemon.kill()
        await self._start_again(daemon)
        return True

    async def _start_again(self, daemon: Daemon) -> None:
        await daemon.ended()
        await self._pause(0.0, 3.0)
        await self.fleet.start(daemon.instance)

    async def _end(self) -> bool:
        daemon = await self._one_ready()
        if daemon is None:
            return False
        daemon.terminate()
        await self._start_again(daemon)
        return True

    async def _stop_shortly(self) -> bool:
        return await self._stop(0.1, 4.0)

    async def _stop_long(self) -> bool:
        return await self._stop(RULES.lease + 1.0, RULES.lease + 6.0)

    async def _stop(self, least: float, most: float) -> bool:
        daemon = self._one()
        if daemon is None:
            return False
        daemon.stop()
        await self._pause(least, most)
        daemon.go_on()
        return True

    async def _double(self) -> bool:
        older = await self._one_ready()
        if older is None:
            return False
        await self._supersede(older)
        await older.ended()
        return True

    async def _supersede(self, older: Daemon) -> None:
        older.replaced()
        newer = await self.fleet.start(older.instance)
        await until(lambda: not newer.running or newer.ready(), "the newer process is ready")

    async def _double_stopped(self) -> bool:
        older = await self._one_ready()
        if older is None:
            return False
        older.stop()
        await self._pause(0.0, 2.0)
        await self._supersede(older)
        await self._pause(0.0, RULES.lapsed + 3.0)
        older.go_on()
        await older.ended()
        return True

    async def _replace(self) -> bool:
        daemon = await self._one_ready()
        if daemon is None:
            return False
        del self.fleet.current[daemon.instance]
        daemon.kill()
        await self.fleet.add()
        await daemon.ended()
        return True

    # --- the store --------------------------------------------------------------------------

    async def _kill_store(self) -> bool:
        return await self._with_store(lambda: self._outage(0.0, 4.0))

    async def _kill_store_long(self) -> bool:
        return await self._with_store(lambda: self._outage(RULES.lease + 1.0, RULES.lease + 4.0))

    async def _with_store(self, fault: Fault) -> bool:
        if self._store_busy:
            return False
        self._store_busy = True
        try:
            return await fault()
        finally:
            self._store_busy = False

    async def _outage(self, least: float, most: float) -> bool:
        store = self.fleet.store
        found = await store.kill()
        if isinstance(store, EmbeddedStore):
            await store.back()
        else:
            await self._pause(least, most)
            await store.start()
        return found

    async def _stop_store(self) -> bool:
        return await self._with_store(self._frozen)

    async def _frozen(self) -> bool:
        found = self.fleet.store.stop()
        await self._pause(0.1, 7.0)
        self.fleet.store.go_on()
        return found

    async def _kill_all(self) -> bool:
        return await self._with_store(self._power_cut)

    async def _power_cut(self) -> bool:
        running = self.fleet.running()
        for daemon in running:
            daemon.kill()
        found = await self.fleet.store.kill()
        await self._pause(0.0, 2.0)
        await self.fleet.store.start()
        await asyncio.gather(*(self._start_again(daemon) for daemon in running))
        if isinstance(self.fleet.store, EmbeddedStore):
            await self.fleet.store.back()
        return found and bool(running)
