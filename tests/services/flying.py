"""A delivery loop with a store in memory and a clock that stands."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import anyio

from targets import Target
from twr.config import Route
from twr.core.backoff import Backoff
from twr.core.breaker import BreakerPolicy
from twr.core.clock import Clock
from twr.core.jobs import Claim, Claimed, Job, Settle, Turn
from twr.core.masking import Mask
from twr.core.matching import Match, Rule
from twr.errors import StoreError, StoreUnavailable
from twr.services.delivery import Delivery, Dependencies, RouteSecrets
from until import until

NOW = 1_788_088_524.0
NOW_MS = int(NOW * 1000)
AWAY = StoreUnavailable("away")


@dataclass
class Time:
    """A clock that moves when it is told to."""

    seconds: float = 0.0

    def clock(self) -> Clock:
        return Clock(lambda: NOW + self.seconds, lambda: 1000.0 + self.seconds)

    @property
    def now_ms(self) -> int:
        return int((NOW + self.seconds) * 1000)


def job(update_id: int, route: str = "shop", attempts: int = 0, expires_in: float = 0) -> Job:
    """A job as the store hands it out; it never expires unless told."""
    expires = NOW_MS + int(expires_in * 1000) if expires_in else 0
    return Job(f"{update_id}/{route}", "", attempts, NOW_MS, expires, b'{"n":%d}' % update_id)


@dataclass
class Memory:
    """A store that hands out what waits and notes how each job was settled.

    `errors` are raised by the next calls (None: that call works), `lose` loses an answer, turns
    about what is `damaged` fail, what is `gone` is lost, and the next claim that gets something
    `takes` some seconds.
    """

    time: Time
    waiting: dict[str, deque[Job]] = field(default_factory=dict)
    suspects: dict[str, deque[Job]] = field(default_factory=dict)
    settled: list[Settle] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    leased: dict[str, Job] = field(default_factory=dict)
    errors: deque[StoreError | None] = field(default_factory=deque)
    lose: bool = False
    damaged: set[str] = field(default_factory=set)
    gone: set[str] = field(default_factory=set)
    takes: float = 0.0
    reclaims: list[tuple[str, ...]] = field(default_factory=list)
    claims: int = 0

    def add(self, *jobs: Job) -> None:
        for each in jobs:
            self.waiting.setdefault(each.route, deque()).append(each)

    def kinds(self) -> list[tuple[str, str, str]]:
        return [(settle.id, settle.kind, settle.argument) for settle in self.settled]

    async def turn(self, settles: Sequence[Settle], claims: Sequence[Claim]) -> Turn:
        await asyncio.sleep(0)
        self._maybe_fail("turn")
        names = {*(settle.id for settle in settles), *(claim.route for claim in claims)}
        if names & self.damaged:
            raise StoreError("WRONGTYPE")
        held = tuple(self._settle(settle) for settle in settles)
        claimed = tuple(self._claim(claim) for claim in claims)
        if self.lose:
            self.lose = False
            raise StoreUnavailable("the answer was lost")
        now_ms = self.time.now_ms
        if any(each.jobs for each in claimed):
            self.time.seconds, self.takes = self.time.seconds + self.takes, 0.0
        return Turn(now_ms, held, claimed)

    def _maybe_fail(self, call: str) -> None:
        self.calls.append(call)
        error = self.errors.popleft() if self.errors else None
        if error is not None:
            raise error

    def _settle(self, settle: Settle) -> bool:
        found = self.leased.get(settle.id)
        if found is None or found.token != settle.token:
            return False
        self.settled.append(settle)
        del self.leased[settle.id]
        if settle.kind == "release":
            queue = self.waiting.setdefault(found.route, deque())
            (queue.appendleft if settle.argument == "front" else queue.append)(found)
        return True

    def _claim(self, claim: Claim) -> Claimed:
        queues = self.suspects if claim.suspect else self.waiting
        queue = queues.setdefault(claim.route, deque())
        got = [queue.popleft() for _ in range(min(claim.slots, len(queue)))]
        gone = tuple(each.id for each in got if each.id in self.gone)
        jobs = [self.lease(each) for each in got if each.id not in gone]
        left = len(self.waiting.get(claim.route, ())), len(self.suspects.get(claim.route, ()))
        return Claimed(claim.route, tuple(jobs), left[0], left[1], None, (), gone)

    def lease(self, waiting: Job) -> Job:
        self.claims += 1
        leased = replace(waiting, token=f"n:{self.claims}")
        self.leased[leased.id] = leased
        return leased

    async def reclaim(self, held: Sequence[str]) -> tuple[str, ...]:
        self._maybe_fail("reclaim")
        self.reclaims.append(tuple(held))
        lost = [self.leased.pop(name) for name in list(self.leased) if name not in held]
        self.add(*lost)
        return tuple(each.id for each in lost)


@dataclass
class Measures:
    """What was counted."""

    outcomes: list[tuple[str, str]] = field(default_factory=list)
    stale: int = 0
    errors: int = 0

    def delivery(self, route: str, outcome: str, seconds: float) -> None:
        self.outcomes.append((route, outcome))

    def lag(self, route: str, seconds: float) -> None: ...

    def stale_settle(self, count: int = 1) -> None:
        self.stale += count

    def store_error(self) -> None:
        self.errors += 1

    def forget_route(self, route: str) -> None: ...


def a_route(target: Target, name: str = "shop", **changes: object) -> Route:
    """A route with the defaults, but for quick failures."""
    route = Route(
        name=name,
        target_url=target.url,
        rule=Rule(name, Match()),
        timeout=10.0,
        concurrency=32,
        order="chat",
        max_attempts=10,
        backoff=Backoff(1.0, 2.0, 600.0, 0.0),
        permanent_statuses=frozenset({410}),
        max_pending=100,
        breaker=BreakerPolicy(5, 5.0, 60.0),
    )
    return replace(route, **changes)  # type: ignore[arg-type]


class Bench:
    """A delivery of some routes, running."""

    def __init__(self, grace: float = 5.0) -> None:
        self.time = Time()
        self.store = Memory(self.time)
        self.measures = Measures()
        self.beats = 0
        self.stop = anyio.Event()
        self.given = Dependencies(
            store=self.store,
            measures=self.measures,
            clock=self.time.clock(),
            random=lambda: 0.5,
            mask=Mask,
            alive=self._beat,
            user_agent="twr/1",
            grace=lambda: grace,
        )
        self.delivery = Delivery(self.given)
        self.task: asyncio.Task[None] | None = None

    def _beat(self) -> None:
        self.beats += 1

    async def configure(self, *routes: Route, token: str | None = None) -> None:
        secrets = {route.name: RouteSecrets((b"newer", b"older"), token) for route in routes}
        await self.delivery.configure(routes, secrets)

    def start(self) -> None:
        self.task = asyncio.create_task(self.delivery.run(self.stop))

    async def drain(self) -> None:
        self.stop.set()
        assert self.task is not None
        await self.task

    def add(self, *jobs: Job) -> None:
        """Jobs arrive and their routes are told."""
        self.store.add(*jobs)
        self.delivery.news([each.route for each in jobs])

    def pass_time(self, seconds: float) -> None:
        self.time.seconds += seconds
        self.delivery.news([])

    async def settles(self, count: int) -> list[tuple[str, str, str]]:
        """How jobs were settled, once so many were."""
        await until(lambda: len(self.store.settled) >= count, 10, f"{count} settles")
        return self.store.kinds()

    def idle(self) -> bool:
        """Whether the first route's slots would be offered."""
        return self.delivery.routes()[0].idle(self.time.clock().monotonic())

    def breaker(self, name: str = "shop") -> str:
        return next(run for run in self.delivery.routes() if run.route.name == name).breaker.state


@asynccontextmanager
async def running(
    *routes: Route, grace: float = 5.0, token: str | None = None
) -> AsyncIterator[Bench]:
    """A bench that is drained at the end."""
    bench = Bench(grace)
    await bench.configure(*routes, token=token)
    bench.start()
    try:
        yield bench
        await bench.drain()
    finally:
        if bench.task is not None and not bench.task.done():
            bench.task.cancel()
            await asyncio.gather(bench.task, return_exceptions=True)
        await bench.delivery.close()
