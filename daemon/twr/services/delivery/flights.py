"""The jobs that this process holds leases of: each from its start to the settle it ends with."""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import anyio

from twr.core.jobs import Job, Settle, named
from twr.core.outcome import Answer
from twr.core.text import kv
from twr.services.delivery.attempt import Judge, Leased, headers
from twr.services.delivery.ports import Dependencies
from twr.services.delivery.route import LEASE_MARGIN, RunningRoute

log = logging.getLogger("twr.delivery")


class Flights:
    """`held` are the jobs not yet settled in the store, those that have landed included; their
    settles wait here until they are taken. `landed` is called with each new one, `landed_at` is
    the monotonic moment of the last."""

    def __init__(self, given: Dependencies, landed: Callable[[], None]) -> None:
        self.held: dict[str, Job] = {}
        self.landed_at = 0.0
        self._given = given
        self._landed = landed
        self._judge = Judge(given.clock, given.random, given.mask)
        self._settles: deque[Settle] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._open = False
        self._fault: BaseException | None = None

    @asynccontextmanager
    async def within(self) -> AsyncIterator[None]:
        """Flights start in here, and those that have not ended are cancelled at its end; before
        and after, what starts is given back."""
        waiting = {settle.id for settle in self._settles}
        # What a crash of the loop left unsettled is nobody's any more: it is reclaimed.
        self.held = {name: job for name, job in self.held.items() if name in waiting}
        self._open, self._fault = True, None
        try:
            yield
        finally:
            self._open = False
            if self._tasks:
                with anyio.CancelScope(shield=True):
                    # One that has not begun would be cancelled without its settle.
                    await asyncio.sleep(0)
                    for task in self._tasks:
                        task.cancel()
                    await asyncio.wait(self._tasks)

    def start(
        self, run: RunningRoute | None, job: Job, lease: float, now_ms: int, now: float
    ) -> None:
        """Start a job leased for `lease` seconds, or give it back where its route has gone or is
        paused since.

        `now` is a monotonic moment before the lease began, `now_ms` the store's time then.
        """
        self.held[job.id] = job
        paused = run is not None and run.breaker.open and not run.breaker.allowance(now, 1)
        if run is None or paused or not self._open:
            self._land(_given_back(job))
            return
        left = (job.expires_ms - now_ms) / 1000 if job.expires_ms else float("inf")
        start_by, breaker = now + min(LEASE_MARGIN, left), run.breaker
        leased = Leased(
            job, run.route, run.secrets, run.sender, breaker, lease - LEASE_MARGIN, start_by,
            breaker.open,
        )  # fmt: skip
        run.flying += 1
        run.sender.expect()
        if leased.probe:
            breaker.probe()
        # A plain task: one of a group costs a tenth of a delivery more, and needs no scope here.
        task = asyncio.create_task(self._fly(run, leased))
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self._fault = task.exception()

    def take(self, most: int) -> list[Settle]:
        """The oldest settles, for the store. Raises what a flight has crashed with."""
        if self._fault is not None:
            raise self._fault
        return [self._settles.popleft() for _ in range(min(len(self._settles), most))]

    def take_back(self, settles: Sequence[Settle]) -> None:
        """The store did not get them, as far as it is known: they are the next again."""
        unsettled = [settle for settle in settles if settle.id in self.held]
        self._settles.extendleft(reversed(unsettled))

    def settled(self, settle: Settle) -> None:
        """The store has decided about it, this way or the other."""
        self.held.pop(settle.id, None)

    @property
    def waiting(self) -> int:
        """How many settles wait."""
        return len(self._settles)

    async def _fly(self, run: RunningRoute, leased: Leased) -> None:
        job = leased.job
        settle: Settle | None = None
        try:
            started = self._given.clock.monotonic()
            if started < leased.start_by:
                answer = await self._post(leased)
                settle = self._judge.settle(run, leased, answer)
                self._measure(run, job, settle, self._given.clock.monotonic() - started)
        finally:
            if leased.probe and settle is None:
                leased.breaker.withdraw()
            run.flying -= 1
            run.news = True
            self._land(settle or _given_back(job))
            await leased.sender.done()

    def _land(self, settle: Settle) -> None:
        self.landed_at = self._given.clock.monotonic()
        self._settles.append(settle)
        self._landed()

    async def _post(self, leased: Leased) -> Answer:
        job, url, timeout = leased.job, leased.route.target_url, leased.timeout
        try:
            now = self._given.clock.time()
            made = headers(job, leased.secrets, now, self._given.user_agent)
            return await leased.sender.post(url, job.body, made, timeout)
        except Exception as error:
            # A fault of ours with one job is no reason to stop the others.
            log.exception("delivery broke %s", kv(**named(job.id)))
            return Answer(None, f"internal error: {type(error).__name__}", internal=True)

    def _measure(self, run: RunningRoute, job: Job, settle: Settle, seconds: float) -> None:
        measures, name = self._given.measures, run.route.name
        outcome = settle.kind if settle.kind in ("delivered", "dead") else "failed"
        measures.delivery(name, outcome, seconds)
        if settle.kind == "delivered":
            measures.lag(name, max(0.0, self._given.clock.time() - job.accepted_ms / 1000))


def _given_back(job: Job) -> Settle:
    return Settle("release", job.id, job.token, "front")
