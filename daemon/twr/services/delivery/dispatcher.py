"""The loop that keeps all routes' slots busy: one store call a turn settles and claims for all."""

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import anyio

from twr.config import Route
from twr.core.breaker import Breaker
from twr.core.jobs import Accepted, Claim, Claimed, Offer, Settle, Turn, named
from twr.core.text import kv
from twr.edges.sender import Sender
from twr.errors import StoreError, StoreFull, StoreUnavailable
from twr.services.delivery.alone import Alone
from twr.services.delivery.flights import Flights
from twr.services.delivery.ports import Dependencies
from twr.services.delivery.route import RouteSecrets, RunningRoute

log = logging.getLogger("twr.delivery")

# How often routes are looked at without a sign of news: work of other instances, replays, moves.
POLL = 1.0
MOST_SETTLES = 256
# Pauses between calls to a store that fails.
FIRST_PAUSE, MOST_PAUSE = 0.05, 1.0
# How often leases of ours are looked for that nobody told us of: a call that was given up can
# still reach the store long after.
RECLAIM = 5.0
# What counts as few deliveries, and as following each other fast: seconds since the last ended.
FEW_FLIGHTS = 4
FAST = 0.02
# How long the last settles of a drain may take.
FLUSH = 5.0


class Delivery:
    """The deliveries of this process. `configure` before and while it runs, `run` once."""

    def __init__(self, given: Dependencies) -> None:
        self._given = given
        self._wake = asyncio.Event()
        self._flights = Flights(given, self._wake.set)
        self._routes: dict[str, RunningRoute] = {}
        self._alone = Alone()
        self._poll_at = 0.0
        self._reclaim_at = 0.0
        self._pause = 0.0
        self._offers_out = 0
        self._unsure = False
        self._resent = False
        self._claiming = True

    # --- what the rest of the process sees -------------------------------------------------

    async def configure(self, routes: Sequence[Route], secrets: Mapping[str, RouteSecrets]) -> None:
        """Run these routes from now on, all at once. What is in flight ends as it began."""
        names = {route.name for route in routes}
        gone = [name for name in self._routes if name not in names]
        unused = [self._routes.pop(name).sender for name in gone]
        for route in routes:
            unused += self._configure(route, secrets[route.name])
        for name in gone:
            self._given.measures.forget_route(name)
        self._wake.set()
        for sender in unused:
            await sender.retire()

    def _configure(self, route: Route, secrets: RouteSecrets) -> list[Sender]:
        """The senders that it has no use for any more."""
        run = self._routes.get(route.name)
        if run is None:
            breaker = Breaker(route.breaker)
            sender = Sender(route.concurrency)
            self._routes[route.name] = RunningRoute(route, secrets, sender, breaker)
            return []
        old = run.sender
        if run.route.concurrency != route.concurrency:
            run.sender = Sender(route.concurrency)
        if run.route.target_url != route.target_url:
            run.breaker = Breaker(route.breaker)
        run.breaker.policy = route.breaker
        run.route, run.secrets, run.news = route, secrets, True
        return [old] if old is not run.sender else []

    def routes(self) -> Sequence[RunningRoute]:
        """The routes as they run."""
        return tuple(self._routes.values())

    def held(self) -> int:
        """How many jobs this process holds leases of."""
        return len(self._flights.held)

    def turns_fast(self) -> bool:
        """Whether only a few deliveries are under way, and they follow each other so fast that a
        longer turn of the event loop holds them up."""
        since = self._given.clock.monotonic() - self._flights.landed_at
        return 0 < len(self._flights.held) <= FEW_FLIGHTS and since < FAST

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
        now = self._given.clock.monotonic()
        offers = self._offers(names, now)
        if not offers:
            yield offers, lambda _: None
            return
        offered = [(self._routes[offer.route], offer.slots) for offer in offers]
        leases = {offer.route: offer.lease for offer in offers}
        for run, slots in offered:
            run.offered += slots
        self._offers_out += 1
        try:
            yield offers, lambda accepted: self._start_all(accepted, leases, now)
        except BaseException:
            self._unsure = True
            raise
        finally:
            self._offers_out -= 1
            for run, slots in offered:
                run.offered -= slots
            self._wake.set()

    def _offers(self, names: set[str], now: float) -> list[Offer]:
        if not self._claiming or self._unsure or self._pause or self._wants_alone(now):
            return []
        runs = (self._routes[name] for name in names if name in self._routes)
        return [
            Offer(run.route.name, run.free(now), run.lease)
            for run in runs
            if run.idle(now) and run.free(now) > 0
        ]

    def _start_all(self, accepted: Accepted, leases: Mapping[str, float], now: float) -> None:
        for job in accepted.leased:
            run, lease = self._routes.get(job.route), leases[job.route]
            self._flights.start(run, job, lease, job.accepted_ms, now)

    # --- the loop ---------------------------------------------------------------------------

    async def run(self, stop: anyio.Event) -> None:
        """Deliver until `stop` is set, then drain: claim nothing more, let what is in flight end
        for up to the grace, give back the rest with no attempt counted. After a crash it can be
        run again."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._wake_on, stop)
            async with self._flights.within():
                self._claiming = self._unsure = True
                while not stop.is_set():
                    await self._step()
                self._claiming = False
                with anyio.move_on_after(self._given.grace()):
                    while self._flights.held or self._offers_out:
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
            while self._flights.waiting or self._offers_out:
                await self._step()
        if self._flights.held:
            log.warning("leases left behind %s", kv(jobs=len(self._flights.held)))

    async def _step(self) -> None:
        self._given.alive()
        if self._pause:
            await anyio.sleep(self._pause)
        self._unsure = self._unsure or self._given.clock.monotonic() >= self._reclaim_at
        if self._unsure and not await self._reclaim():
            return
        now = self._given.clock.monotonic()
        claims = self._claims(now)
        settles = self._flights.take(MOST_SETTLES)
        if not settles and not claims:
            await self._sleep(max(0.0, self._wakes_at(now) - now))
            return
        try:
            await self._turn(settles, claims, now)
        except BaseException:
            # A crash of the loop is no reason to deliver again what has been delivered.
            self._flights.take_back(settles)
            raise

    async def _sleep(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(min(seconds, POLL)):
                await self._wake.wait()
        except TimeoutError:
            return
        self._wake.clear()

    def _wakes_at(self, now: float) -> float:
        """When time alone changes what can be done; only an event does while nothing starts."""
        if not self._claiming or self._wants_alone(now):
            return now + POLL
        moments = [run.wakes_at(now) for run in self._routes.values()]
        if self._suspects_wait(now):
            moments.append(self._alone.turn_at)
        return min((at for at in moments if at is not None), default=self._poll_at)

    async def _turn(self, settles: list[Settle], claims: list[Claim], now: float) -> None:
        try:
            await self._call(settles, claims, now)
        except (StoreUnavailable, StoreFull) as error:
            self._failed(error, settles)
        except StoreError as error:
            # One damaged key must not stop all others: each goes on its own.
            log.error("store turn failed %s", kv(error=error, settles=len(settles)))
            await self._one_by_one(settles, claims, now)

    async def _call(self, settles: list[Settle], claims: list[Claim], now: float) -> None:
        # A call that was begun is finished: only then is it known what it did.
        with anyio.CancelScope(shield=True):
            turn = await self._given.store.turn(settles, claims)
            self._succeeded(turn, settles, claims, now)

    def _failed(self, error: StoreError, settles: list[Settle]) -> None:
        if not self._pause:
            log.warning("store unavailable %s", kv(error=error))
        self._pause = min(self._pause * 2 or FIRST_PAUSE, MOST_PAUSE)
        self._given.measures.store_error()
        self._flights.take_back(settles)
        self._unsure = self._resent = True
        self._expect_news()

    def _expect_news(self) -> None:
        for run in self._routes.values():
            run.news = True

    async def _one_by_one(self, settles: list[Settle], claims: list[Claim], now: float) -> None:
        self._given.measures.store_error()
        self._unsure = True
        alone: list[tuple[list[Settle], list[Claim]]] = [([settle], []) for settle in settles]
        alone += [([], [claim]) for claim in claims]
        for done, (some, wish) in enumerate(alone):
            try:
                await self._call(some, wish, now)
            except (StoreUnavailable, StoreFull) as error:
                self._failed(error, settles[done:])
                return
            except StoreError as error:
                self._damaged(error, some, wish)
        await self._sleep(MOST_PAUSE)

    def _damaged(self, error: StoreError, settles: list[Settle], claims: list[Claim]) -> None:
        names = [settle.id for settle in settles] or [claim.route for claim in claims]
        log.error("store damaged %s", kv(at=names[0], error=error))
        for settle in settles:
            self._flights.settled(settle)
        for claim in claims:
            run = self._routes.get(claim.route)
            if run is not None:
                run.ready, run.suspects, run.next_due = 0, 0, None

    def _succeeded(
        self, turn: Turn, settles: list[Settle], claims: list[Claim], now: float
    ) -> None:
        self._store_back()
        for settle, held in zip(settles, turn.settled, strict=True):
            self._flights.settled(settle)
            if not held and not self._resent:
                log.warning("settle refused %s", kv(**named(settle.id), kind=settle.kind))
                self._given.measures.stale_settle()
        if not self._flights.waiting:
            self._resent = False
        for claim, claimed in zip(claims, turn.claimed, strict=True):
            self._claimed(claimed, claim.lease, turn.now_ms, now)
            if claim.suspect and claimed.jobs:
                self._alone.began(claimed.jobs[0].id)

    def _store_back(self) -> None:
        if self._pause:
            log.info("store back")
            self._pause = 0.0

    def _claimed(self, claimed: Claimed, lease: float, now_ms: int, now: float) -> None:
        for job_id in claimed.expired:
            log.warning("dead letter %s", kv(**named(job_id), reason="expired"))
        for job_id in claimed.gone:
            log.error("update lost by the store %s", kv(**named(job_id)))
        run = self._routes.get(claimed.route)
        if run is not None:
            run.ready, run.suspects = claimed.ready, claimed.suspects
            due = claimed.next_due
            run.next_due = None if due is None else now + max(0, due - now_ms) / 1000
        for job in claimed.jobs:
            self._flights.start(run, job, lease, now_ms, now)

    # --- what to claim ----------------------------------------------------------------------

    def _suspects_wait(self, now: float) -> bool:
        return any(run.offers_suspect(now) for run in self._routes.values())

    def _wants_alone(self, now: float) -> bool:
        return self._alone.wanted(self._flights.held, self._suspects_wait(now), now)

    def _claims(self, now: float) -> list[Claim]:
        if not self._claiming:
            return []
        if self._wants_alone(now):
            return self._claim_alone(now)
        poll = now >= self._poll_at
        if poll:
            self._poll_at = now + POLL
        claims = []
        for run in self._routes.values():
            free = run.free(now)
            if free > 0 and (poll or run.wants_claim(now)):
                run.news = False
                claims.append(Claim(run.route.name, free, run.lease))
            elif poll and run.offered:
                # Its slots are out with an accept call: the next is offered none, and so on to it.
                run.news = True
        return claims

    def _claim_alone(self, now: float) -> list[Claim]:
        if self._flights.held or self._offers_out:
            return []
        run = next(run for run in self._routes.values() if run.offers_suspect(now))
        return [Claim(run.route.name, 1, run.lease, suspect=True)]

    async def _reclaim(self) -> bool:
        """Find leases of ours that nobody told us of; False when that could not be done yet."""
        if self._offers_out:
            await self._sleep(POLL)
            return not self._offers_out
        try:
            lost = await self._given.store.reclaim(tuple(self._flights.held))
        except (StoreUnavailable, StoreFull) as error:
            self._failed(error, [])
            return False
        except StoreError as error:
            # What it could not find stays leased until the next start; all else goes on.
            log.error("leases not reclaimed %s", kv(error=error))
            lost = ()
        if lost:
            log.info("leases reclaimed %s", kv(jobs=len(lost)))
            self._expect_news()
        self._store_back()
        self._unsure = False
        self._reclaim_at = self._given.clock.monotonic() + RECLAIM
        return True
