"""Finds work that nobody does any more: of dead processes, of leases that ran out, of strays."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import anyio

from twr import pace
from twr.core.clock import Clock
from twr.core.jobs import Beat, Elder, Stats, Swept, named
from twr.core.text import kv
from twr.errors import StoreError, StoreFull, StoreUnavailable, StoreUnfit

log = logging.getLogger("twr.recovery")

# How often: the heartbeat and the sweep, the look for strays, the trim. Seconds.
EVERY = 1.0
# A process that has not beaten for so long is taken for dead; the scripts use the same.
LAPSED = 5.0
# How long those that had no store get to settle what they hold before a sweep takes it.
SETTLES_FIRST = 3.0
REPAIR = 15.0
TRIM = 60.0
# So many deaths of a sweep are told one by one: a day's backlog may expire at once.
MOST_NAMED = 20


class DeadLetters(Protocol):
    """What recovery asks of the dead letters."""

    async def trim(self, max_age: float, max_count: int) -> int: ...


class Store(Protocol):
    """What recovery asks of the store; raises StoreError and its kinds."""

    @property
    def dead_letters(self) -> DeadLetters: ...
    async def beat(self, routes: Sequence[str], *, take_over: bool = False) -> Beat: ...
    async def recover(self, living: Sequence[str]) -> Swept: ...
    async def sweep(self) -> Swept: ...
    async def repair(self, route: str) -> tuple[str, ...]: ...
    async def stats(self) -> Stats: ...


@dataclass(frozen=True, slots=True)
class Settings:
    """What a reload may change: the routes served, and how long (seconds) and how many dead
    letters are kept."""

    routes: tuple[str, ...]
    max_age: float
    max_count: int


class Process(Protocol):
    """What recovery tells the rest of the process."""

    async def store_answers(self) -> None:
        """For the first time; raises StoreUnfit to end the process."""

    def store_works(self) -> None:
        """All calls of a round succeeded."""

    def store_failed(self, error: StoreError) -> None:
        """A call failed."""

    def recovered(self) -> None:
        """What dead processes of this name had left is ready again."""

    def replaced(self) -> None:
        """A newer process has our name."""

    def leases_expired(self, count: int) -> None:
        """Leases that ran out were given back."""

    def trimmed(self, count: int) -> None:
        """Dead letters were dropped, being too old or too many."""

    def work_found(self) -> None:
        """Something was made ready."""

    def alive(self) -> None:
        """The loop turns."""


def lives(elder: Elder, now_ms: int, watched_ms: int, *, here: bool, runs: bool) -> bool:
    """Whether an older process under our name may still be at work: it beats, and if it is one of
    this machine (`here`) it runs. What it missed before `watched_ms` may be the store's fault."""
    if here and not runs:
        return False
    return now_ms - max(elder.heartbeat_ms, watched_ms) <= LAPSED * 1000


class Recovery:
    """The loop of one process. `runs` tells whether a pid lives on this machine."""

    def __init__(
        self,
        store: Store,
        process: Process,
        settings: Callable[[], Settings],
        clock: Clock,
        *,
        boot_id: str,
        runs: Callable[[int], bool],
    ) -> None:
        self._store = store
        self._process = process
        self._settings = settings
        self._clock = clock
        self._boot_id = boot_id
        self._runs = runs
        self._registered = False
        self._recovered = False
        self._replaced = False
        self._watched_ms = 0
        self._damaged: set[str] = set()
        self._sweep_at: float | None = None
        self._repair_at = clock.monotonic() + REPAIR
        self._trim_at = 0.0

    async def run(self, stop: anyio.Event) -> None:
        """Take the instance's name over, give back what its dead processes left, and then keep
        looking for work that nobody does, until `stop`. It can be run again."""
        while not stop.is_set():
            self._process.alive()
            try:
                with anyio.CancelScope(shield=True):
                    await self._step()
                self._process.store_works()
            except StoreUnfit:
                raise
            except StoreError as error:
                self._sweep_at = None
                self._process.store_failed(error)
            await pace.wait(stop, EVERY)

    async def _step(self) -> None:
        if not self._registered:
            await self._process.store_answers()
        await self._beat()
        now = self._clock.monotonic()
        if self._sweep_at is not None and now >= self._sweep_at:
            await self._sweep()
        if now >= self._repair_at:
            self._repair_at = now + REPAIR
            await self._repair()
        if now >= self._trim_at:
            self._trim_at = now + TRIM
            await self._trim()

    async def _beat(self) -> None:
        beat = await self._store.beat(self._settings().routes, take_over=not self._registered)
        self._registered = True
        if self._sweep_at is None:
            self._sweep_at = self._clock.monotonic() + SETTLES_FIRST
            self._watched_ms = beat.now_ms
        if not beat.ours and not self._replaced:
            self._replaced = True
            self._process.replaced()
        if beat.ours and (beat.elders or not self._recovered):
            await self._recover(beat)

    async def _recover(self, beat: Beat) -> None:
        living = [it.nonce for it in beat.elders if self._lives(it, beat.now_ms)]
        if len(living) < len(beat.elders) or not self._recovered:
            found = await self._store.recover(living)
            self._tell_damaged(found.damaged)
            if found.reaped:
                log.warning("leases recovered %s", kv(jobs=found.reaped, cause="process died"))
                self._process.work_found()
            _tell_dead(found)
        if not self._recovered:
            self._recovered = True
            self._process.recovered()

    def _lives(self, elder: Elder, now_ms: int) -> bool:
        here = elder.boot_id == self._boot_id
        runs = here and self._runs(elder.pid)
        # At the start one of another machine is judged by its heartbeat alone.
        watched_ms = self._watched_ms if runs or self._recovered else 0
        return lives(elder, now_ms, watched_ms, here=here, runs=runs)

    async def _sweep(self) -> None:
        found = await self._store.sweep()
        self._tell_damaged(found.damaged)
        if found.reaped:
            log.warning("leases expired %s", kv(jobs=found.reaped))
            self._process.leases_expired(found.reaped)
            self._process.work_found()
        _tell_dead(found)

    async def _repair(self) -> None:
        for route in (await self._store.stats()).routes:
            if route.waiting:
                await self._repair_route(route.name)

    async def _repair_route(self, route: str) -> None:
        try:
            repaired = await self._store.repair(route)
        except (StoreUnavailable, StoreFull):
            raise
        except StoreError:
            self._tell_damaged([*self._damaged, route])
            return
        for job in repaired:
            log.warning("stray job repaired %s", kv(**named(job)))
        if repaired:
            self._process.work_found()

    def _tell_damaged(self, routes: Sequence[str]) -> None:
        """Each once, until it is mended: what is damaged is no outage, and stops nobody else."""
        for route in sorted(set(routes) - self._damaged):
            hint = "a key of it has the wrong type"
            log.error("store damaged %s", kv(route=route, hint=hint))
        self._damaged = set(routes)

    async def _trim(self) -> None:
        settings = self._settings()
        dropped = await self._store.dead_letters.trim(settings.max_age, settings.max_count)
        if dropped:
            log.warning("dead letters trimmed %s", kv(count=dropped))
            self._process.trimmed(dropped)


def _tell_dead(found: Swept) -> None:
    for reason, jobs in (("expired", found.expired), ("poison", found.poison)):
        for job in jobs[:MOST_NAMED]:
            log.warning("dead letter %s", kv(**named(job), reason=reason))
        if len(jobs) > MOST_NAMED:
            log.warning("dead letters %s", kv(more=len(jobs) - MOST_NAMED, reason=reason))
