"""What this process knows of itself, and what its services tell each other through it."""

import logging
from collections.abc import Iterable, Sequence

import anyio

from twr.core.beats import Beats
from twr.core.clock import Clock
from twr.core.findings import CONFIG_INVALID, ROUTE_DOWN, STORE_DOWN, Finding
from twr.core.fitness import Fitness, judge
from twr.core.text import kv
from twr.edges.metrics import Metrics
from twr.edges.store import Store
from twr.errors import Replaced, StoreError, StoreUnfit, TwrError
from twr.services.delivery import Delivery
from twr.services.probe import Traffic

log = logging.getLogger("twr.supervisor")

# How long a loop may take for a turn before it counts as wedged. Its slowest call to the store
# ends within 10 s.
LOOP_WITHIN = 20.0


class Process:
    """The state that is no service's own. `stop` asks the process to end."""

    def __init__(self, clock: Clock, metrics: Metrics, store: Store, name: str | None) -> None:
        self.clock = clock
        self.metrics = metrics
        self.store = store
        self.stop = anyio.Event()
        self.attempted = anyio.Event()
        self.beats = Beats()
        self.started_at = clock.time()
        self.username = name
        self.fitness: Fitness | None = None
        self.failure: TwrError | None = None
        self.config_error: str | None = None
        self.delivery: Delivery | None = None
        self._accepted = self._unauthorized = 0
        self._recovered = False
        self._store_error: StoreError | None = None

    # --- told by the ingress ----------------------------------------------------------------

    def accepted(self) -> None:
        """An update was answered with 202."""
        self._accepted += 1

    def unauthorized(self) -> None:
        """A request was answered with 401."""
        self._unauthorized += 1

    def traffic(self) -> Traffic:
        """Both, since the process started."""
        return Traffic(self._accepted, self._unauthorized)

    # --- told by recovery -------------------------------------------------------------------

    async def store_answers(self) -> None:
        """Look once at whether the store keeps what it is given; raises StoreUnfit."""
        info = await self.store.info()
        self.fitness = judge(info, await self.store.setting("appendfsync"))
        if self.fitness.unfit:
            raise StoreUnfit(self.fitness.unfit)
        for warning in self.fitness.warnings:
            log.warning("%s", warning)
        if self.username is None:
            self.username = await self.store.load_username()

    def store_works(self) -> None:
        """The store answers."""
        if self._store_error is not None:
            log.info("store back")
        self._store_error = None

    def store_failed(self, error: StoreError) -> None:
        """The store does not answer, or not well."""
        if self._store_error is None:
            log.warning("store unavailable %s", kv(error=error))
        self._store_error = error
        self.metrics.store_error()
        self.attempted.set()

    def recovered(self) -> None:
        """What dead processes of this name had left is ready again."""
        self._recovered = True
        self.attempted.set()

    def replaced(self) -> None:
        """A newer process has this instance's name: it goes on, we end."""
        self.fail(Replaced("replaced by a newer process of the same instance name"))

    def leases_expired(self, count: int) -> None:
        """Leases ran out."""
        self.metrics.lease_expired(count)

    def trimmed(self, count: int) -> None:
        """Dead letters were dropped."""
        self.metrics.dead_letters_trimmed(count)

    def work_found(self) -> None:
        """Something was made ready."""
        if self.delivery is not None:
            self.delivery.news([run.route.name for run in self.delivery.routes()])

    # --- told by the supervisor -------------------------------------------------------------

    def fail(self, error: TwrError) -> None:
        """End the process, in good order, with this error; the first one counts."""
        if self.failure is None:
            self.failure = error
            log.error("ending %s", kv(reason=error))
        self.stop.set()
        self.attempted.set()

    def expect(self, loop: str) -> None:
        """The loop begins to turn."""
        self.beats.expect(loop, LOOP_WITHIN, self.clock.monotonic())

    def alive(self, loop: str) -> None:
        """The loop turns."""
        self.beats.beat(loop, self.clock.monotonic())

    # --- asked by admin and probe -----------------------------------------------------------

    def unready(self) -> Sequence[str]:
        """Why this process should get no traffic; nothing when it should."""
        reasons = [f"{loop} is stale" for loop in self.beats.stale(self.clock.monotonic())]
        if self._store_error is not None:
            reasons.append(str(self._store_error))
        elif not self._recovered:
            reasons.append("recovery is not done")
        if self.stop.is_set():
            reasons.append("the process is ending")
        return reasons

    def findings(self) -> Iterable[Finding]:
        """What is wrong with this process now."""
        if self._store_error is not None:
            yield Finding(STORE_DOWN, None, (("error", str(self._store_error)),))
        if self.config_error is not None:
            yield Finding(CONFIG_INVALID, None, (("error", self.config_error),))
        for run in self.delivery.routes() if self.delivery else ():
            if run.breaker.open:
                yield Finding(ROUTE_DOWN, run.route.name, (("target", run.route.target),))
