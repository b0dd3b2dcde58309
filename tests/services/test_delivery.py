"""The delivery loop with a store in memory, a clock that stands, and targets on real sockets."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import anyio
import pytest

from targets import Target, answering, by_turns, hanging, held
from twr.config import Route
from twr.core.backoff import Backoff
from twr.core.breaker import BreakerPolicy
from twr.core.clock import Clock
from twr.core.jobs import Accepted, Claim, Claimed, Job, Settle, Turn
from twr.core.masking import Mask
from twr.core.matching import Match, Rule
from twr.core.signing import sign
from twr.edges.sender import Sender
from twr.errors import StoreError, StoreUnavailable
from twr.services.delivery import Delivery, Dependencies, RouteSecrets
from twr.services.delivery.alone import Alone
from twr.services.delivery.flights import Flights
from until import until

pytestmark = pytest.mark.anyio

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


# --- one attempt --------------------------------------------------------------------------------


async def test_the_request_is_exactly_this() -> None:
    """Two signatures while a secret is rotated, the target's own secret, the attempt's number."""
    async with Target() as target, running(a_route(target), token="own-secret") as bench:
        bench.add(job(4242, attempts=2))
        assert await bench.settles(1) == [("4242/shop", "delivered", "")]
        (request,) = target.received
    body = b'{"n":4242}'
    signatures = [sign([secret], int(NOW), body) for secret in (b"newer", b"older")]
    assert dict(request.headers) == {
        "Host": f"127.0.0.1:{target.port}",
        "Content-Length": "10",
        "Content-Type": "application/json",
        "X-Webhook-Timestamp": "1788088524",
        "X-Webhook-Signature": ",".join(signatures),
        "X-Telegram-Update-Id": "4242",
        "X-Webhook-Route": "shop",
        "X-Webhook-Attempt": "3",
        "X-Telegram-Bot-Api-Secret-Token": "own-secret",
        "User-Agent": "twr/1",
    }
    assert request.body == body


@pytest.mark.parametrize(
    ("status", "header", "attempts", "kind", "argument"),
    [
        (200, None, 0, "delivered", ""),
        (299, None, 9, "delivered", ""),
        (302, None, 0, "retry", "1000"),
        (404, None, 1, "retry", "2000"),
        (500, None, 2, "retry", "4000"),
        (503, None, 0, "retry", "1000"),
        (503, "30", 0, "retry", "30000"),
        (429, "Sun, 30 Aug 2026 11:16:24 GMT", 0, "retry", "60000"),
        (429, "99999", 0, "retry", "600000"),
        (500, "30", 0, "retry", "1000"),
        (410, None, 0, "dead", "permanent"),
        (500, None, 9, "dead", "attempts"),
        (503, None, 9, "dead", "attempts"),
    ],
)
async def test_what_a_status_settles(
    status: int, header: str | None, attempts: int, kind: str, argument: str
) -> None:
    """Delivered, once more after a delay in milliseconds, or dead for a reason."""
    headers = {} if header is None else {"Retry_After": header}
    async with (
        Target(answering(status, b"", **headers)) as target,
        running(a_route(target)) as bench,
    ):
        bench.add(job(1, attempts=attempts))
        assert await bench.settles(1) == [("1/shop", kind, argument)]
        outcome = kind if kind in ("delivered", "dead") else "failed"
        assert bench.measures.outcomes == [("shop", outcome)]


async def test_a_fault_of_ours_stops_neither_the_others_nor_the_pause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The job is tried again; a breaker that is open stays so, and may probe again."""
    async with Target(answering(503)) as target:
        shop = a_route(target, breaker=BreakerPolicy(1, 5.0, 60.0))
        async with running(shop) as bench:
            bench.add(job(1))
            await bench.settles(1)
            assert bench.breaker() == "open"
            monkeypatch.setattr("twr.services.delivery.flights.headers", _broken)
            bench.add(job(2))
            bench.pass_time(6)
            assert (await bench.settles(2))[1] == ("2/shop", "retry", "1000")
            assert bench.breaker() == "open"
            monkeypatch.undo()
            target.behaviour = answering()
            bench.add(job(3))
            assert (await bench.settles(3))[2] == ("3/shop", "delivered", "")
            assert bench.breaker() == "closed"


def _broken(*_: object) -> dict[str, str]:
    raise RuntimeError("broken")


# --- leases and expiry --------------------------------------------------------------------------


@pytest.mark.parametrize(("takes", "posts"), [(9.9, 1), (10.1, 2)])
async def test_a_lease_that_could_end_first_is_given_back(takes: float, posts: int) -> None:
    """The margin is counted from before the claim; nothing is POSTed and no attempt is burned."""
    async with Target() as target, running(a_route(target)) as bench:
        bench.store.takes = takes
        bench.add(job(1))
        kinds = await bench.settles(posts)
    given_back = [("1/shop", "release", "front")] * (posts - 1)
    assert kinds == [*given_back, ("1/shop", "delivered", "")]
    assert len(target.received) == 1


async def test_what_expires_on_its_way_is_not_posted() -> None:
    """It is given back, for the store to bury."""
    async with Target() as target, running(a_route(target)) as bench:
        bench.store.takes = 3.0
        bench.add(job(1, expires_in=2))
        assert (await bench.settles(1))[0] == ("1/shop", "release", "front")
    assert target.received == []


# --- slots, pauses, probes ----------------------------------------------------------------------


async def test_each_route_has_its_own_slots() -> None:
    """A route that hangs in all of its slots holds up no other."""
    async with (
        Target(hanging()) as hung,
        Target() as target,
        running(a_route(hung, "hung", concurrency=3), a_route(target), grace=0.1) as bench,
    ):
        bench.add(*(job(n, "hung") for n in range(10)))
        await hung.has(3)
        bench.add(*(job(n) for n in range(10)))
        await bench.settles(10)
        assert len(hung.received) == 3


async def test_absences_open_the_breaker_and_burn_nothing_after() -> None:
    """Five in a row; then one probe after the cooldown, each time of another job, doubling."""
    async with (
        Target(answering(503)) as target,
        running(a_route(target, concurrency=1)) as bench,
    ):
        bench.add(*(job(n) for n in range(8)))
        kinds = await bench.settles(5)
        assert [kind for _, kind, _ in kinds] == ["retry"] * 5
        assert bench.breaker() == "open"
        for probe, cooldown in enumerate((5, 10, 20)):
            bench.pass_time(cooldown - 0.1)
            bench.pass_time(0.1)
            kinds = await bench.settles(6 + probe)
            assert kinds[-1] == (f"{5 + probe}/shop", "release", "back")
        target.behaviour = answering()
        bench.pass_time(40)
        await bench.settles(11)
        assert bench.breaker() == "closed"
    assert [request.attempt for request in target.received] == [1] * 11


async def test_nothing_is_sent_while_a_route_is_paused() -> None:
    """However much arrives."""
    async with (
        Target(answering(503)) as target,
        running(a_route(target, breaker=BreakerPolicy(1, 5.0, 60.0))) as bench,
    ):
        bench.add(job(1))
        await bench.settles(1)
        bench.add(*(job(n) for n in range(2, 50)))
        bench.pass_time(4.9)
        turns = bench.beats
        await until(lambda: bench.beats > turns, 10, "a turn of the loop")
        assert len(target.received) == 1


async def test_a_longer_retry_after_prolongs_the_pause() -> None:
    """The probe waits for as long as the target asks."""
    async with (
        Target(answering(503, Retry_After="40")) as target,
        running(a_route(target, breaker=BreakerPolicy(1, 5.0, 60.0))) as bench,
    ):
        bench.add(job(1))
        await bench.settles(1)
        (run,) = bench.delivery.routes()
        assert run.breaker.until == 1040.0


async def test_refusals_never_open_the_breaker() -> None:
    """They reset the row: four absences, a refusal, four absences leave it closed."""
    turns = [answering(503)] * 4 + [answering(500)] + [answering(503)] * 4 + [answering()]
    async with (
        Target(by_turns(*turns)) as target,
        running(a_route(target, concurrency=1)) as bench,
    ):
        bench.add(*(job(n) for n in range(10)))
        await bench.settles(10)
        assert bench.breaker() == "closed"


async def test_a_resumed_route_ramps_up() -> None:
    """One at a time after the probe, then two, then more."""
    gates = [asyncio.Event() for _ in range(4)]
    async with Target(answering(503)) as target:
        shop = a_route(target, breaker=BreakerPolicy(1, 5.0, 60.0))
        async with running(shop, grace=0.1) as bench:
            bench.add(job(0))
            await bench.settles(1)
            target.received.clear()
            target.behaviour = by_turns(answering(), *(held(gate) for gate in gates), hanging())
            bench.add(*(job(n) for n in range(1, 20)))
            bench.pass_time(5)
            await target.has(2)
            assert bench.breaker() == "closed"
            assert [run.flying for run in bench.delivery.routes()] == [1]
            gates[0].set()
            await target.has(4)
            assert [run.flying for run in bench.delivery.routes()] == [2]
            gates[1].set()
            await target.has(6)
            assert [run.flying for run in bench.delivery.routes()] == [3]


# --- poison -------------------------------------------------------------------------------------


async def test_a_suspect_flies_alone() -> None:
    """It waits for the others to land, and the others wait for it."""
    gates = {n: asyncio.Event() for n in (1, 2)}
    async with (
        Target(by_turns(held(gates[1]), held(gates[2]), answering())) as target,
        running(a_route(target)) as bench,
    ):
        bench.add(job(1))
        await target.has(1)
        bench.store.suspects["shop"] = deque([job(2)])
        bench.pass_time(1.1)
        await until(lambda: bench.delivery.routes()[0].suspects == 1, 10, "news of the suspect")
        bench.add(job(3))
        turns = bench.beats
        await until(lambda: bench.beats > turns + 1, 10, "a turn")
        assert target.ids == [1]
        with bench.delivery.offering({"shop"}) as (offers, _):
            assert offers == []
        gates[1].set()
        await target.has(2)
        assert target.ids == [1, 2]
        gates[2].set()
        assert len(await bench.settles(3)) == 3
    assert target.ids == [1, 2, 3]
    assert target.most_at_once == 1


def test_the_others_get_as_long_as_the_suspect_took() -> None:
    """A row of suspects that hang does not stop everything."""
    alone = Alone()
    assert not alone.wanted({}, waits=False, now=100.0)
    assert alone.wanted({}, waits=True, now=103.0)
    alone.began("1/shop")
    assert alone.wanted({"1/shop"}, waits=True, now=110.0)
    assert not alone.wanted({}, waits=True, now=112.0)
    assert not alone.wanted({}, waits=True, now=123.9)
    assert alone.wanted({}, waits=True, now=124.0)


# --- outages and crashes ------------------------------------------------------------------------


async def test_settles_go_before_claims_after_an_outage() -> None:
    """They are kept, in their order, and sent with the first call that works."""
    gate = asyncio.Event()
    async with Target(held(gate)) as target, running(a_route(target)) as bench:
        bench.add(job(1), job(2))
        await target.has(2)
        bench.store.errors.extend([AWAY] * 3)
        bench.store.add(job(3))
        gate.set()
        kinds = await bench.settles(3)
        assert {name for name, _, _ in kinds[:2]} == {"1/shop", "2/shop"}
        assert kinds[2] == ("3/shop", "delivered", "")
        assert bench.measures.stale == 0
        assert bench.measures.errors == 3
    assert target.ids.count(3) == 1


async def test_claims_whose_answer_was_lost_are_reclaimed() -> None:
    """They are delivered, once, and what flies meanwhile is left alone."""
    gate = asyncio.Event()
    async with (
        Target(by_turns(held(gate), answering())) as target,
        running(a_route(target)) as bench,
    ):
        bench.add(job(1))
        await target.has(1)
        bench.store.lose = True
        bench.add(job(2))
        assert await bench.settles(1) == [("2/shop", "delivered", "")]
        assert bench.store.reclaims[-1] == ("1/shop",)
        gate.set()
        assert len(await bench.settles(2)) == 2
    assert target.ids == [1, 2]


async def test_settles_whose_answer_was_lost_are_no_stale_ones() -> None:
    """The store refuses them the second time, and nobody is alarmed."""
    async with Target() as target, running(a_route(target)) as bench:
        bench.add(job(1))
        await target.has(1)
        bench.store.lose = True
        await bench.settles(1)
        bench.add(job(2))
        await bench.settles(2)
        assert (bench.measures.stale, bench.delivery.held()) == (0, 0)


async def test_a_fenced_settle_is_counted() -> None:
    """A late answer, when somebody else has the job by now, changes nothing."""
    gate = asyncio.Event()
    async with Target(held(gate)) as target, running(a_route(target)) as bench:
        bench.add(job(1))
        await target.has(1)
        bench.store.leased["1/shop"] = replace(bench.store.leased["1/shop"], token="other:1")
        gate.set()
        await until(lambda: bench.measures.stale == 1, 10, "a stale settle")
        assert bench.store.settled == []


@pytest.mark.parametrize("place", ["1/shop", "bad"])
async def test_a_damaged_key_isolates(place: str) -> None:
    """Whatever a turn cannot do with one job or route, the others are done."""
    async with Target() as target, running(a_route(target), a_route(target, "bad")) as bench:
        bench.store.damaged.add(place)
        bench.add(*(job(n) for n in range(1, 5)), job(9, "bad"))
        expected = {f"{n}/shop" for n in range(1, 5)} | {"9/bad"}
        expected -= {place, f"9/{place}"}
        await bench.settles(len(expected))
        assert {name for name, _, _ in bench.store.kinds()} == expected


async def test_an_outage_amid_a_damaged_turn_keeps_the_rest() -> None:
    """What was not yet tried one by one waits for the store."""
    gate = asyncio.Event()
    async with Target(held(gate)) as target, running(a_route(target)) as bench:
        bench.add(*(job(n) for n in range(1, 4)))
        await target.has(3)
        bench.store.errors.extend([StoreError("damaged"), None, AWAY])
        gate.set()
        kinds = await bench.settles(3)
        assert {name for name, _, _ in kinds} == {"1/shop", "2/shop", "3/shop"}
        assert bench.measures.stale == 0


async def test_a_reclaim_that_fails_for_damage_stops_nothing() -> None:
    """Deliveries go on without it."""
    async with Target() as target:
        bench = Bench()
        bench.store.errors.append(StoreError("damaged"))
        await bench.configure(a_route(target))
        bench.start()
        bench.add(job(1))
        assert await bench.settles(1) == [("1/shop", "delivered", "")]
        await bench.drain()
        await bench.delivery.close()


async def test_a_crashed_loop_can_run_again() -> None:
    """What it had in flight is given back with no attempt counted, and delivered."""
    async with Target(by_turns(hanging(), hanging(), answering())) as target:
        bench = Bench()
        await bench.configure(a_route(target))
        bench.start()
        bench.add(job(1), job(2))
        await target.has(2)
        bench.store.errors.append(RuntimeError("a bug"))  # type: ignore[arg-type]
        bench.add(job(3))
        assert bench.task is not None
        with pytest.raises(ExceptionGroup):
            await bench.task
        bench.start()
        kinds = await bench.settles(5)
        assert sorted(kinds[:2]) == [("1/shop", "release", "front"), ("2/shop", "release", "front")]
        assert sorted(kinds[2:]) == [(f"{n}/shop", "delivered", "") for n in (1, 2, 3)]
        await bench.drain()
        await bench.delivery.close()


# --- the end ------------------------------------------------------------------------------------


async def test_a_drain_lets_what_flies_land() -> None:
    """It claims nothing more, and settles all."""
    gate = asyncio.Event()
    async with Target(held(gate)) as target:
        async with running(a_route(target, concurrency=2)) as bench:
            bench.add(*(job(n) for n in range(5)))
            await target.has(2)
            bench.stop.set()
            gate.set()
        assert len(target.received) == 2
        assert [kind for _, kind, _ in bench.store.kinds()] == ["delivered"] * 2
        assert bench.delivery.held() == 0


async def test_what_outlasts_the_grace_goes_back_to_the_front() -> None:
    """No attempt is counted."""
    async with Target(hanging()) as target:
        async with running(a_route(target), grace=0.05) as bench:
            bench.add(job(1), job(2))
            await target.has(2)
        assert sorted(bench.store.kinds()) == [
            ("1/shop", "release", "front"),
            ("2/shop", "release", "front"),
        ]


async def test_a_drain_sleeps_while_it_waits() -> None:
    """The loop does not spin."""
    async with Target(hanging()) as target:
        async with running(a_route(target), grace=0.3) as bench:
            bench.add(job(1))
            await target.has(1)
            bench.time.seconds += 100
            before = bench.beats
        assert bench.beats - before < 10


async def test_jobs_of_an_accept_that_ends_after_the_loop_go_back() -> None:
    """The store has leased them to us; they wait for nobody."""
    async with Target() as target:
        bench = Bench()
        await bench.configure(a_route(target))
        bench.start()
        await until(lambda: bench.beats > 1)
        with bench.delivery.offering({"shop"}) as (offers, start):
            assert [offer.slots for offer in offers] == [32]
            bench.stop.set()
            await asyncio.sleep(0)
            start(Accepted(1, (bench.store.lease(job(1)),)))
        await bench.drain()
        await bench.delivery.close()
        assert bench.store.leased == {}


# --- offers and reload --------------------------------------------------------------------------


async def test_an_offered_slot_is_kept_free() -> None:
    """What is offered to an accept is not claimed as well, and what it leased starts at once."""
    async with (
        Target(hanging()) as target,
        running(a_route(target, concurrency=1), grace=0.05) as bench,
    ):
        await until(lambda: bench.idle(), 10, "an idle route")
        with bench.delivery.offering({"shop", "unknown"}) as (offers, start):
            assert [(offer.route, offer.slots, offer.lease) for offer in offers] == [
                ("shop", 1, 20.0)
            ]
            bench.add(job(2))
            turns = bench.beats
            await until(lambda: bench.beats > turns, 10, "a turn")
            assert bench.store.leased == {}
            start(Accepted(1, (bench.store.lease(job(1)),)))
        await target.has(1)
        assert target.ids == [1]


async def test_a_poll_that_meets_offered_slots_comes_next() -> None:
    """What waits is not held up by accepts that follow each other: the next is offered nothing."""
    async with (
        Target(hanging()) as target,
        running(a_route(target, concurrency=1), grace=0.05) as bench,
    ):
        await until(bench.idle, 10, "an idle route")
        with bench.delivery.offering({"shop"}):
            bench.store.add(job(1))
            bench.pass_time(1.0)
            turns = bench.beats
            await until(lambda: bench.beats > turns, 10, "a turn")
            with bench.delivery.offering({"shop"}) as (offers, _):
                assert offers == []
        await target.has(1)


async def test_what_is_due_goes_before_what_arrives() -> None:
    """The slots of a route are not offered once a retry of it is due."""
    async with Target() as target, running(a_route(target)) as bench:
        await until(bench.idle, 10, "an idle route")
        run = bench.delivery.routes()[0]
        run.next_due = bench.time.clock().monotonic() + 1.0
        with bench.delivery.offering({"shop"}) as (offers, _):
            assert len(offers) == 1
        bench.time.seconds += 1.0
        with bench.delivery.offering({"shop"}) as (offers, _):
            assert offers == []


@pytest.mark.parametrize(
    ("count", "ago", "fast"), [(4, 0.0, True), (5, 0.0, False), (4, 0.03, False)]
)
async def test_few_deliveries_that_follow_each_other_turn_fast(
    count: int, ago: float, fast: bool
) -> None:
    """At most four, the last of which ended at most a fiftieth of a second ago."""
    gate = asyncio.Event()
    async with Target() as target, running(a_route(target)) as bench:
        assert not bench.delivery.turns_fast()
        bench.add(job(1))
        await bench.settles(1)
        assert not bench.delivery.turns_fast()
        target.behaviour = held(gate)
        bench.add(*(job(n) for n in range(2, 2 + count)))
        await target.has(1 + count)
        bench.time.seconds += ago
        assert bench.delivery.turns_fast() is fast
        gate.set()


@pytest.mark.parametrize("name", ["shop", "other"])
async def test_a_flight_that_starts_amid_a_reload_is_delivered(name: str) -> None:
    """Whatever of its route changes: its connections are closed only after it, and no attempt is
    counted."""
    async with Target() as target, running(a_route(target, max_attempts=1)) as bench:
        await until(bench.idle, 10, "an idle route")
        with bench.delivery.offering({"shop"}) as (_, start):
            start(Accepted(1, (bench.store.lease(job(1)),)))
            await bench.configure(a_route(target, name, max_attempts=1, concurrency=5))
        assert await bench.settles(1) == [("1/shop", "delivered", "")]


async def test_a_flight_that_starts_while_old_connections_close_is_delivered() -> None:
    """The new ones are in place before the old ones are closed."""
    async with Target() as target, running(a_route(target, max_attempts=1)) as bench:
        bench.add(job(1))
        await bench.settles(1)
        reload = asyncio.create_task(
            bench.configure(a_route(target, max_attempts=1, concurrency=5))
        )
        count = 1
        while not reload.done():
            count += 1
            bench.add(job(count))
            await asyncio.sleep(0)
        kinds = {kind for _, kind, _ in await bench.settles(count)}
        assert (kinds, count > 1) == ({"delivered"}, True)


async def test_all_routes_change_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long the connections of one take to close."""
    gate = asyncio.Event()
    close = Sender.close

    async def slow(sender: Sender) -> None:
        await gate.wait()
        await close(sender)

    monkeypatch.setattr(Sender, "close", slow)
    async with Target() as target, running(a_route(target, "a"), a_route(target, "b")) as bench:
        reload = asyncio.create_task(
            bench.configure(*(a_route(target, name, concurrency=7) for name in "abc"))
        )
        await asyncio.sleep(0)
        runs = [(run.route.name, run.route.concurrency) for run in bench.delivery.routes()]
        assert (runs, reload.done()) == ([("a", 7), ("b", 7), ("c", 7)], False)
        gate.set()
        await reload


async def test_a_flight_keeps_to_the_timeout_that_its_lease_was_made_for() -> None:
    """A reload that makes it longer meanwhile would let the POST outlast the lease."""
    async with (
        Target(hanging()) as target,
        running(a_route(target, timeout=0.2, max_attempts=1)) as bench,
    ):
        await until(bench.idle, 10, "an idle route")
        with bench.delivery.offering({"shop"}) as (_, start):
            await bench.configure(a_route(target, timeout=60.0, max_attempts=1))
            start(Accepted(1, (bench.store.lease(job(1)),)))
        await bench.settles(1)
        (settle,) = bench.store.settled
        assert (settle.kind, settle.error) == ("dead", "timeout after 0.2s")


async def test_what_an_old_target_still_answers_says_nothing_of_the_new_one() -> None:
    """A request that hung there does not pause the route."""
    policy = BreakerPolicy(1, 5.0, 60.0)
    async with (
        Target(hanging()) as old,
        Target() as new,
        running(a_route(old, timeout=0.3, breaker=policy)) as bench,
    ):
        bench.add(job(1))
        await old.has(1)
        await bench.configure(a_route(new, timeout=0.3, breaker=policy))
        assert (await bench.settles(1))[0][1] == "retry"
        assert bench.breaker() == "closed"


async def test_flights_that_are_ended_before_they_have_begun_are_given_back() -> None:
    """Their slots are free again."""
    async with Target() as target:
        bench = Bench()
        await bench.configure(a_route(target))
        run = bench.delivery.routes()[0]
        flights = Flights(bench.given, lambda: None)
        async with flights.within():
            now = bench.time.clock().monotonic()
            flights.start(run, job(1), run.lease, bench.time.now_ms, now)
            assert run.flying == 1
        assert run.flying == 0
        assert [(settle.id, settle.kind) for settle in flights.take(9)] == [("1/shop", "release")]
        await bench.delivery.close()


async def test_an_accept_that_fails_may_have_leased() -> None:
    """Its jobs are looked for, and delivered."""
    async with Target() as target, running(a_route(target)) as bench:
        await until(lambda: bench.idle(), 10, "an idle route")
        bench.store.lease(job(1))
        with pytest.raises(StoreUnavailable), bench.delivery.offering({"shop"}):
            raise AWAY
        assert await bench.settles(1) == [("1/shop", "delivered", "")]


async def test_an_update_that_the_store_lost_is_told(caplog: pytest.LogCaptureFixture) -> None:
    """Nothing is left to deliver, but nobody has to find out by himself."""
    async with Target() as target, running(a_route(target)) as bench:
        bench.store.gone.add("1/shop")
        bench.add(job(1), job(2))
        assert await bench.settles(1) == [("2/shop", "delivered", "")]
    lost = [record for record in caplog.records if record.levelname == "ERROR"]
    assert [record.message for record in lost] == ["update lost by the store route=shop update=1"]


async def test_accepts_without_offers_do_not_hold_up_a_reclaim() -> None:
    """Under a constant stream of updates the loop finds its lost leases all the same."""
    async with Target() as target, running(a_route(target)) as bench:
        await until(lambda: bench.idle(), 10, "an idle route")
        with bench.delivery.offering({"nobody"}):
            bench.store.lose = True
            bench.add(job(1))
            assert await bench.settles(1) == [("1/shop", "delivered", "")]


async def test_a_route_that_goes_lets_its_flights_end() -> None:
    """What is claimed for it afterwards is given back."""
    gate = asyncio.Event()
    async with Target(held(gate)) as target, running(a_route(target)) as bench:
        bench.add(job(1))
        await target.has(1)
        await bench.configure(a_route(target, "other"))
        gate.set()
        assert await bench.settles(1) == [("1/shop", "delivered", "")]


async def test_a_new_target_starts_with_a_closed_breaker() -> None:
    """The old one's absence says nothing of it."""
    async with Target(answering(503)) as old, Target() as new:
        policy = BreakerPolicy(1, 5.0, 60.0)
        async with running(a_route(old, breaker=policy)) as bench:
            bench.add(job(1), job(2))
            await bench.settles(2)
            assert bench.breaker() == "open"
            await bench.configure(a_route(new, breaker=policy))
            bench.add(job(3))
            await new.has(1)
            assert bench.breaker() == "closed"
