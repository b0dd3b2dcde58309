"""The queue of updates, and the loop that pushes it to the webhook at Telegram's pace."""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from twr.double.rules import (
    MAX_PENDING,
    Patience,
    QueueKey,
    Webhook,
    after_failure,
    executable,
)
from twr.double.wire import Answer, Connection, Endpoint, Limits, NoAnswerError, encode_request

ACTIVE_FOR = 10.0
QUIET_PAUSE = 2.0
BURST, BURST_WINDOW = 10, 0.5
GONE_FOR = 23 * 3600.0


@dataclass(frozen=True, slots=True)
class Delivery:
    """One attempt to hand an update over.

    `status` is None when there was no answer; `error` is then the reason as getWebhookInfo
    shows it, or None where it shows none. `sent_at` and `at` are the clock's monotonic
    seconds before and after; `attempt` counts from 1.
    """

    update_id: int
    url: str
    attempt: int
    status: int | None
    error: str | None
    body: bytes
    sent_at: float
    at: float

    @property
    def ok(self) -> bool:
        """Whether Telegram counts it as delivered."""
        return self.status is not None and 200 <= self.status <= 299


@dataclass(slots=True, eq=False)
class Waiting:
    """An update that is not delivered yet. Times are Telegram's seconds."""

    number: int
    update_id: int
    body: bytes
    key: QueueKey
    expires_at: float
    wakeup_at: float = 0.0
    attempts: int = 0
    patience: Patience = field(default_factory=Patience)


@dataclass(slots=True, eq=False)
class Flight:
    """A request on its way."""

    waiting: Waiting
    connection: Connection
    sent_at: float


@dataclass(slots=True)
class Report:
    """Where the pusher tells what happened; all of it is called in the event loop."""

    delivered: Callable[[Delivery], None]
    failed: Callable[[str], None]
    executed: Callable[[dict[str, object]], None]
    dropped: Callable[[int, str], None]
    gone: Callable[[], None]


@dataclass(slots=True)
class Pusher:
    """Holds every pending update and sends them: one in flight for each serial queue.

    `now` gives Telegram's seconds, of which one takes `scale` real ones; `monotonic` real ones.
    """

    now: Callable[[], float]
    monotonic: Callable[[], float]
    random: Callable[[], float]
    scale: float
    limits: Limits
    report: Report

    webhook: Webhook | None = field(default=None, init=False)
    endpoint: Callable[[], Endpoint] | None = field(default=None, init=False)
    _backlog: deque[Waiting] = field(default_factory=deque, init=False)
    _queues: dict[QueueKey, deque[Waiting]] = field(default_factory=dict, init=False)
    _flights: dict[asyncio.Task[None], Flight] = field(default_factory=dict, init=False)
    _idle: list[Connection] = field(default_factory=list, init=False)
    _opened: deque[float] = field(default_factory=lambda: deque(maxlen=BURST), init=False)
    _last_start: float = field(default=float("-inf"), init=False)
    _last_success: float = field(default=float("-inf"), init=False)
    _gone_since: float | None = field(default=None, init=False)
    _wake: asyncio.Event = field(default_factory=asyncio.Event, init=False)

    @property
    def pending(self) -> int:
        """Updates not delivered yet, those in flight included."""
        return len(self._backlog) + sum(map(len, self._queues.values()))

    @property
    def in_flight(self) -> int:
        """Requests on their way."""
        return len(self._flights)

    @property
    def loaded_queues(self) -> int:
        """Serial queues that are in memory; updates of others are not even looked at."""
        return len(self._queues)

    def waiting(self) -> list[Waiting]:
        """All pending updates in the order they came."""
        queued = [waiting for queue in self._queues.values() for waiting in queue]
        return sorted([*queued, *self._backlog], key=lambda waiting: waiting.number)

    def add(self, waiting: Waiting) -> None:
        """Take one more update; the one over 100,000 is lost, as with Telegram."""
        if self.pending >= MAX_PENDING:
            self.report.dropped(waiting.update_id, "overflow")
            return
        self._backlog.append(waiting)
        self._wake.set()

    def forget(self, keep: Callable[[Waiting], bool]) -> None:
        """Drop every pending update that `keep` is false for; for a bot without a webhook."""
        kept = [waiting for waiting in self.waiting() if keep(waiting)]
        self._queues.clear()
        self._backlog = deque(kept)

    def change(self, webhook: Webhook | None, endpoint: Callable[[], Endpoint] | None) -> None:
        """Push to another webhook from now on, or to none; what was in flight is sent again."""
        for task in self._flights:
            task.cancel()
        self._flights.clear()
        idle, self._idle = self._idle, []
        for connection in idle:
            connection.abort()
        pending = self.waiting()
        for waiting in pending:
            waiting.wakeup_at, waiting.patience = 0.0, Patience()
        self._queues.clear()
        self._backlog = deque(pending)
        self._opened.clear()
        self._last_start = self._last_success = float("-inf")
        self._gone_since = None
        self.webhook, self.endpoint = webhook, endpoint
        self._wake.set()

    async def run(self) -> None:
        """Push until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                while True:
                    self._wake.clear()
                    self._close_idle()
                    self._load()
                    self._start(group)
                    await self._sleep()
        finally:
            for connection in self._idle:
                connection.abort()

    async def _sleep(self) -> None:
        pause = self._next_wakeup() - self.now()
        try:
            async with asyncio.timeout(max(0.0, pause) * self.scale if pause < 1e9 else None):
                await self._wake.wait()
        except TimeoutError:
            pass

    def _next_wakeup(self) -> float:
        times = [connection.idle_since + self.limits.idle for connection in self._idle]
        if self.webhook is not None and self._room() > 0:
            not_before = self._not_before()
            times += [max(head.wakeup_at, not_before) for head in self._heads()]
        return min(times, default=float("inf"))

    def _load(self) -> None:
        """Move updates from the backlog into queues, while there are few enough of those."""
        if self.webhook is None:
            return
        while self._backlog and len(self._queues) < 2 * self.webhook.max_connections:
            waiting = self._backlog.popleft()
            if waiting.expires_at < self.now():
                self.report.dropped(waiting.update_id, "expired")
                continue
            self._queues.setdefault(waiting.key, deque()).append(waiting)

    def _start(self, group: asyncio.TaskGroup) -> None:
        while self._room() > 0 and self.now() >= self._not_before():
            due = [head for head in self._heads() if head.wakeup_at <= self.now()]
            if not due:
                return
            waiting = min(due, key=lambda head: (head.wakeup_at, head.number))
            flight = Flight(waiting, self._connection(), self.monotonic())
            self._last_start = self.now()
            waiting.attempts += 1
            task = group.create_task(self._fly(flight))
            self._flights[task] = flight

    def _heads(self) -> list[Waiting]:
        flying = {flight.waiting.key for flight in self._flights.values()}
        return [queue[0] for key, queue in self._queues.items() if key not in flying]

    def _active(self) -> bool:
        return self.now() <= self._last_success + ACTIVE_FOR

    def _room(self) -> int:
        """How many more requests may be in flight."""
        if self.webhook is None:
            return 0
        return (self.webhook.max_connections if self._active() else 1) - len(self._flights)

    def _not_before(self) -> float:
        """When the next request may start at the earliest."""
        if not self._active():
            return self._last_start + QUIET_PAUSE
        full = len(self._opened) == BURST and not any(c.usable for c in self._idle)
        return self._opened[0] + BURST_WINDOW if full else float("-inf")

    def _connection(self) -> Connection:
        while self._idle:
            connection = self._idle.pop()
            if connection.usable:
                return connection
            connection.abort()
        self._opened.append(self.now())
        if self.endpoint is None:
            raise RuntimeError("a webhook without an endpoint")
        return Connection(self.endpoint(), self.limits, self.scale)

    def _close_idle(self) -> None:
        stale = {c for c in self._idle if self.now() >= c.idle_since + self.limits.idle}
        for connection in stale:
            connection.abort()
        self._idle = [c for c in self._idle if c not in stale]

    async def _fly(self, flight: Flight) -> None:
        webhook, connection = self.webhook, flight.connection
        if webhook is None:
            return
        request = encode_request(webhook.target, webhook.secret, flight.waiting.body)
        answer, error = None, None
        try:
            answer = await connection.exchange(request)
        except NoAnswerError as failure:
            error = failure.text
        except asyncio.CancelledError:
            connection.abort()
            raise
        self._flights.pop(asyncio.current_task(), None)  # type: ignore[arg-type]
        self._keep(connection, answer)
        self._settle(flight, webhook, answer, error)
        self._wake.set()

    def _keep(self, connection: Connection, answer: Answer | None) -> None:
        if answer is None or not answer.keep_alive:
            connection.abort()
            return
        connection.idle_since = self.now()
        self._idle.append(connection)

    def _settle(
        self, flight: Flight, webhook: Webhook, answer: Answer | None, error: str | None
    ) -> None:
        waiting = flight.waiting
        if answer is not None and not 200 <= answer.status <= 299:
            error = f"Wrong response from the webhook: {answer.status} {answer.reason}"
        delivery = Delivery(
            waiting.update_id,
            webhook.url,
            waiting.attempts,
            answer.status if answer else None,
            error,
            answer.body if answer else b"",
            flight.sent_at,
            self.monotonic(),
        )
        if delivery.ok and answer is not None:
            self._succeed(waiting, answer)
        else:
            self._fail(waiting, answer, error)
        self.report.delivered(delivery)

    def _succeed(self, waiting: Waiting, answer: Answer) -> None:
        self._last_success = self.now()
        self._gone_since = None
        self._remove(waiting)
        parameters = answer.parameters()
        if executable(parameters):
            self.report.executed(dict(parameters))

    def _fail(self, waiting: Waiting, answer: Answer | None, error: str | None) -> None:
        if error is not None:
            self.report.failed(error)
        retry_after = answer.retry_after if answer else 0
        pause, waiting.patience = after_failure(waiting.patience, retry_after, self.random)
        waiting.wakeup_at = self.now() + pause
        if waiting.wakeup_at > waiting.expires_at:
            self._remove(waiting)
            self.report.dropped(waiting.update_id, "expired")
        if answer is not None:
            self._count_gone(answer.status)

    def _count_gone(self, status: int) -> None:
        if status != 410:
            self._gone_since = None
        elif self._gone_since is None:
            self._gone_since = self.now()
        elif self.now() > self._gone_since + GONE_FOR:
            self.change(None, None)
            self.report.gone()

    def _remove(self, waiting: Waiting) -> None:
        queue = self._queues[waiting.key]
        queue.popleft()
        if not queue:
            del self._queues[waiting.key]
