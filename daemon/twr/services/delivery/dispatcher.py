"""The loop that keeps every route's slots busy: one store call a turn settles and claims for all."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

import anyio
from anyio.abc import TaskGroup

from twr.config import Route
from twr.core.breaker import Breaker
from twr.core.clock import Clock
from twr.core.jobs import Accepted, Claim, Claimed, Job, Offer, Settle, Turn
from twr.core.outcome import Answer
from twr.core.text import kv
from twr.edges.sender import Sender
from twr.errors import StoreError, StoreFull, StoreUnavailable
from twr.services.delivery.attempt import Judge, Leased, headers
from twr.services.delivery.route import LEASE_MARGIN, RouteSecrets, RunningRoute

log = logging.getLogger("twr.delivery")

# How often routes are looked at without a sign of news: work of other instances, replays, moves.
POLL = 1.0
MOST_SETTLES = 256
# Pauses between calls to a store that fails, and how often one settle may break its call.
FIRST_PAUSE, MOST_PAUSE = 0.05, 1.0
# How long the last settles of a drain may take.
FLUSH = 5.0


class Store(Protocol):
    """What delivery asks of the store."""

    async def turn(self, settles: Sequence[Settle], claims: Sequence[Claim]) -> Turn: ...
    async def reclaim(self, held: Sequence[str]) -> tuple[str, ...]: ...


class Measures(Protocol):
    """Where delivery counts."""

    def delivery(self, route: str, outcome: str, seconds: float) -> None: ...
    def lag(self, route: str, seconds: float) -> None: ...
    def stale_settle(self, count: int = 1) -> None: ...
    def store_error(self) -> None: ...
    def forget_route(self, route: str) -> None: ...


@dataclass(frozen=True, slots=True)
class Dependencies:
    """What delivery works with. `hidden` gives the secrets that no stored text may show;
    `alive` is called at least every few seconds while the loop turns."""

    store: Store
    measures: Measures
    clock: Clock
    random: Callable[[], float]
    hidden: Callable[[], tuple[str, ...]] = field(repr=False)
    alive: Callable[[], None]
    user_agent: str
    grace: float


class Delivery:
    """The deliveries of this process. `configure` before and while it runs, `run` once."""

    def __init__(self, given: Dependencies) -> None:
        self._given = given
        self._judge = Judge(given.clock, given.random, given.hidden)
        self._routes: dict[str, RunningRoute] = {}
        self._held: dict[str, Job] = {}
        self._settles: deque[Settle] = deque()
        self._tasks: TaskGroup | None = None
        self._wake = asyncio.Event()
        self._poll_at = 0.0
        self._pause = 0.0
        self._offers_out = 0
        self._unsure = False
        self._resent = False
        self._claiming = True
        self._alone: str | None = None
        self._alone_since = self._alone_after = 0.0

    # --- what the rest of the process sees -------------------------------------------------

    async def configure(self, routes: Sequence[Route], secrets: Mapping[str, RouteSecrets]) -> None:
        """Run these routes from now on. What is in flight ends as it began."""
        names = {route.name for route in routes}
        for name in [name for name in self._routes if name not in names]:
            await self._routes.pop(name).sender.retire()
            self._given.measures.forget_route(name)
        for route in routes:
            await self._configure(route, secrets[route.name])
        self._wake.set()

    async def _configure(self, route: Route, secrets: RouteSecrets) -> None:
        run = self._routes.get(route.name)
        if run is None:
            breaker = Breaker(route.breaker)
            sender = Sender(route.concurrency)
            self._routes[route.name] = RunningRoute(route, secrets, sender, breaker)
            return
        if run.route.concurrency != route.concurrency:
            await run.sender.retire()
            run.sender = Sender(route.concurrency)
        if run.route.target_url != route.target_url:
            run.breaker = Breaker(route.breaker)
        run.breaker.policy = route.breaker
        run.route, run.secrets, run.news = route, secrets, True

    def routes(self) -> Sequence[RunningRoute]:
        """The routes as they run."""
        return tuple(self._routes.values())

    def held(self) -> int:
        """How many jobs this process holds leases of."""
        return len(self._held)

    def news(self, names: Sequence[str]) -> None:
        """Jobs were stored for these routes."""
        for name in names:
            run = self._routes.get(name)
            if run is not None:
                run.news = True
        self._wake.set()

    @contextmanager
    def offering(self, names: set[str]) -> Iterator[tuple[list[Offer], Callable[[Accepted], None]]]:
        """Offer free slots to an accept call; what it leased is started by the function given.

        The slots are kept free while the call is under way. A call that fails may have leased
        jobs all the same: they are looked for.
        """
        offers = self._offers(names)
        taken_at = self._given.clock.monotonic()
        offered = [(self._routes[offer.route], offer.slots) for offer in offers]
        for run, slots in offered:
            run.offered += slots
        self._offers_out += 1
        try:
            yield offers, lambda accepted: self._start_all(accepted, taken_at)
        except BaseException:
            self._unsure = self._unsure or bool(offers)
            raise
        finally:
            self._offers_out -= 1
            for run, slots in offered:
                run.offered -= slots
            if offers:
                self._wake.set()

    def _offers(self, names: set[str]) -> list[Offer]:
        if not self._claiming or self._unsure or self._pause or self._wants_alone():
            return []
        now = self._given.clock.monotonic()
        runs = (self._routes[name] for name in names if name in self._routes)
        return [
            Offer(run.route.name, run.free(now), run.lease)
            for run in runs
            if run.idle() and run.free(now) > 0
        ]

    # --- the loop ---------------------------------------------------------------------------

    async def run(self, stop: anyio.Event) -> None:
        """Deliver until `stop` is set, then drain: claim nothing more, let what is in flight end
        for up to the grace, give back the rest with no attempt counted. After a crash it can be
        run again."""
        async with anyio.create_task_group() as tasks:
            self._tasks = tasks
            self._claiming = self._unsure = True
            tasks.start_soon(self._wake_on, stop)
            while not stop.is_set():
                await self._step()
            self._claiming = False
            with anyio.move_on_after(self._given.grace):
                while self._held:
                    await self._step()
            tasks.cancel_scope.cancel()
        await self._flush()

    async def close(self) -> None:
        """Close the connections to all targets."""
        for run in self._routes.values():
            await run.sender.close()

    async def _wake_on(self, stop: anyio.Event) -> None:
        await stop.wait()
        self._wake.set()

    async def _flush(self) -> None:
        with anyio.move_on_after(FLUSH, shield=True):
            while self._settles:
                await self._step()

    async def _step(self) -> None:
        self._given.alive()
        if self._pause:
            await self._sleep(self._pause)
        if self._unsure and not await self._reclaim():
            return
        now = self._given.clock.monotonic()
        claims = self._claims(now)
        settles = [self._settles.popleft() for _ in range(min(len(self._settles), MOST_SETTLES))]
        if not settles and not claims:
            await self._sleep(max(0.0, self._wakes_at(now) - now))
            return
        await self._turn(settles, claims, now)

    async def _sleep(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(min(seconds, POLL)):
                await self._wake.wait()
        except TimeoutError:
            return
        self._wake.clear()

    def _wakes_at(self, now: float) -> float:
        moments = (run.wakes_at(now) for run in self._routes.values())
        return min((at for at in moments if at is not None), default=self._poll_at)

    async def _turn(self, settles: list[Settle], claims: list[Claim], now: float) -> None:
        try:
            # A call that was begun is finished: only then is it known what it did.
            with anyio.CancelScope(shield=True):
                turn = await self._given.store.turn(settles, claims)
        except (StoreUnavailable, StoreFull) as error:
            self._failed(error, settles)
        except StoreError as error:
            # One damaged key must not stop all others: each goes on its own.
            log.error("store turn failed %s", kv(error=error, settles=len(settles)))
            await self._one_by_one(settles, claims, now)
        else:
            self._succeeded(turn, settles, claims, now)

    def _failed(self, error: StoreError, settles: list[Settle]) -> None:
        if not self._pause:
            log.warning("store unavailable %s", kv(error=error))
        self._pause = min(self._pause * 2 or FIRST_PAUSE, MOST_PAUSE)
        self._given.measures.store_error()
        self._settles.extendleft(reversed(settles))
        self._unsure = self._resent = True
        for run in self._routes.values():
            run.news = True

    async def _one_by_one(self, settles: list[Settle], claims: list[Claim], now: float) -> None:
        self._given.measures.store_error()
        self._unsure = True
        alone: list[tuple[list[Settle], list[Claim]]] = [([settle], []) for settle in settles]
        for some, wish in alone + [([], [claim]) for claim in claims]:
            try:
                self._succeeded(await self._given.store.turn(some, wish), some, wish, now)
            except (StoreUnavailable, StoreFull) as error:
                self._failed(error, some)
            except StoreError as error:
                names = [settle.id for settle in some] or [claim.route for claim in wish]
                log.error("store damaged %s", kv(at=names[0], error=error))
                for settle in some:
                    self._held.pop(settle.id, None)
        await self._sleep(MOST_PAUSE)

    def _succeeded(
        self, turn: Turn, settles: list[Settle], claims: list[Claim], now: float
    ) -> None:
        if self._pause:
            log.info("store back")
            self._pause = 0.0
        for settle, held in zip(settles, turn.settled, strict=True):
            self._held.pop(settle.id, None)
            if settle.id == self._alone:
                self._alone, self._alone_after = None, 2 * now - self._alone_since
            if not held and not self._resent:
                log.warning("settle refused %s", kv(job=settle.id, kind=settle.kind))
                self._given.measures.stale_settle()
        if not self._settles:
            self._resent = False
        for claim, claimed in zip(claims, turn.claimed, strict=True):
            if claim.suspect and claimed.jobs:
                self._alone = claimed.jobs[0].id
            self._claimed(claimed, turn.now_ms, now)

    def _claimed(self, claimed: Claimed, now_ms: int, now: float) -> None:
        for job_id in claimed.expired:
            log.warning("dead letter %s", kv(job=job_id, reason="expired"))
        run = self._routes.get(claimed.route)
        if run is not None:
            run.ready, run.suspects = claimed.ready, claimed.suspects
            due = claimed.next_due
            run.next_due = None if due is None else now + max(0, due - now_ms) / 1000
        for job in claimed.jobs:
            self._start(job, now_ms, now)

    # --- what to claim ----------------------------------------------------------------------

    def _wants_alone(self) -> bool:
        """Whether a job is delivered alone, or waits for that and it is time for one. In between
        the others get as long as it took."""
        now = self._given.clock.monotonic()
        if self._alone is not None:
            return True
        waits = any(run.suspects and not run.breaker.open for run in self._routes.values())
        if not waits or now < self._alone_after:
            self._alone_since = now
            return False
        return True

    def _claims(self, now: float) -> list[Claim]:
        if not self._claiming:
            return []
        if self._wants_alone():
            return self._claim_alone()
        poll = now >= self._poll_at
        if poll:
            self._poll_at = now + POLL
        claims = []
        for run in self._routes.values():
            free = run.free(now)
            if free > 0 and (poll or run.wants_claim(now)):
                run.news = False
                claims.append(Claim(run.route.name, free, run.lease))
        return claims

    def _claim_alone(self) -> list[Claim]:
        if self._held or self._offers_out or self._alone is not None:
            return []
        run = next(run for run in self._routes.values() if run.suspects and not run.breaker.open)
        return [Claim(run.route.name, 1, run.lease, suspect=True)]

    async def _reclaim(self) -> bool:
        """Find leases of ours that nobody told us of; False when that could not be done yet."""
        if self._offers_out:
            await self._sleep(POLL)
            return not self._offers_out
        try:
            lost = await self._given.store.reclaim(tuple(self._held))
        except StoreError as error:
            self._failed(error, [])
            return False
        if lost:
            log.info("leases reclaimed %s", kv(jobs=len(lost)))
        self._unsure = False
        return True

    # --- flights ----------------------------------------------------------------------------

    def _start_all(self, accepted: Accepted, now: float) -> None:
        for job in accepted.leased:
            self._start(job, job.accepted_ms, now)

    def _start(self, job: Job, now_ms: int, now: float) -> None:
        """Start a leased job, or give it back where its route has gone or is paused since."""
        run = self._routes.get(job.route)
        if run is None or (run.breaker.open and not run.breaker.allowance(now, 1)):
            self._settles.append(Settle("release", job.id, job.token, "front"))
            return
        assert self._tasks is not None
        left = (job.expires_ms - now_ms) / 1000 if job.expires_ms else float("inf")
        leased = Leased(job, now + min(LEASE_MARGIN, left), run.breaker.open)
        self._held[job.id] = job
        run.flying += 1
        if leased.probe:
            run.breaker.probe()
        self._tasks.start_soon(self._fly, run, leased)

    async def _fly(self, run: RunningRoute, leased: Leased) -> None:
        job = leased.job
        settle = Settle("release", job.id, job.token, "front")
        try:
            started = self._given.clock.monotonic()
            if started < leased.start_by:
                answer = await self._post(run, job)
                settle = self._judge.settle(run, leased, answer)
                self._measure(run, job, settle, self._given.clock.monotonic() - started)
        finally:
            if leased.probe and settle.argument == "front":
                run.breaker.withdraw()
            run.flying -= 1
            run.news = True
            self._settles.append(settle)
            self._wake.set()

    async def _post(self, run: RunningRoute, job: Job) -> Answer:
        made = headers(job, run.secrets, self._given.clock.time(), self._given.user_agent)
        try:
            return await run.sender.post(run.route.target_url, job.body, made, run.route.timeout)
        except Exception as error:
            # A fault of ours with one job is no reason to stop the others.
            log.exception("delivery broke %s", kv(job=job.id))
            return Answer(None, f"internal error: {type(error).__name__}", internal=True)

    def _measure(self, run: RunningRoute, job: Job, settle: Settle, seconds: float) -> None:
        measures, name = self._given.measures, run.route.name
        outcome = settle.kind if settle.kind in ("delivered", "dead") else "failed"
        measures.delivery(name, outcome, seconds)
        if settle.kind == "delivered":
            measures.lag(name, max(0.0, self._given.clock.time() - job.accepted_ms / 1000))
