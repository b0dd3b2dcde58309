"""What Prometheus sees: every metric of twr, in a registry of its own.

Labels are route names, alert names and fixed words, never text from outside.
"""

import time
from collections import Counter as Tally
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Generic, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, generate_latest
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

RECEIVED = ("queued", "duplicate", "ignored")
REJECTED = (
    "unauthorized",
    "forbidden",
    "invalid",
    "too_large",
    "timeout",
    "unavailable",
    "disconnected",
    "method_not_allowed",
    "not_found",
)
STATES = ("ready", "delayed", "processing", "waiting")

DURATIONS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
LAGS = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 5, 30, 60, 300, 900, 3600, 21600, 86400)

Child = TypeVar("Child", Counter, Gauge, Histogram)


class Metrics:
    """All metrics; `route`, `outcome` and the like become labels as they are.

    `bot` is its name in the configuration, a label of one series that others can be joined with.
    """

    def __init__(self, version: str, bot: str = "main") -> None:
        self._registry = registry = CollectorRegistry()
        _Process(registry=registry)
        Info("twr_build", "The running version.", registry=registry).info({"version": version})
        Info("twr_bot", "Whose webhook it is.", registry=registry).info({"bot": bot})
        self._ingress(registry)
        self._routes(registry)
        self._store(registry)
        self._watch(registry)

    def received(self, outcome: str) -> None:
        """An authentic update was answered 202; `outcome` is queued, duplicate or ignored."""
        self._received[outcome].inc()

    def rejected(self, reason: str) -> None:
        """A request was refused; `reason` is the status word of the answer, or `disconnected`."""
        self._rejected[reason].inc()

    def delivery(self, route: str, outcome: str, seconds: float) -> None:
        """An attempt ended after `seconds`."""
        self._deliveries[route, outcome].inc()
        self._durations[route].observe(seconds)

    def lag(self, route: str, seconds: float) -> None:
        """A delivery succeeded, `seconds` after its update was accepted."""
        self._lags[route].observe(seconds)

    def queue(
        self,
        route: str,
        ready: int,
        delayed: int,
        processing: int,
        waiting: int,
        oldest_seconds: float,
    ) -> None:
        """What a route's queue holds now; `waiting` is all that is neither delivered nor dead."""
        for state, count in zip(STATES, (ready, delayed, processing, waiting), strict=True):
            self._queue[route, state].set(count)
        self._oldest[route].set(oldest_seconds)

    def dead_letters(self, counts: Mapping[tuple[str, str], int]) -> None:
        """All dead letters there are, by route and reason; pairs left out are none."""
        for gone in self._dead.keys() - counts.keys():
            self._dead.remove(gone)
        for key, count in counts.items():
            self._dead[key].set(count)

    def breaker(self, route: str, open: bool) -> None:  # noqa: A002
        """Whether a route is paused because its target is away."""
        self._breakers[route].set(open)

    def lease_expired(self, count: int = 1) -> None:
        """Leases ran out, and their jobs were taken back."""
        self._lease_expired.inc(count)

    def dead_letters_trimmed(self, count: int) -> None:
        """The oldest dead letters were dropped, being too old or too many."""
        self._trimmed.inc(count)

    def stale_settle(self, count: int = 1) -> None:
        """Settles were refused, the job having been claimed by somebody else."""
        self._stale_settles.inc(count)

    def store_error(self) -> None:
        """A command to the store failed."""
        self._store_errors.inc()

    def webhook(
        self, matches: bool | None, pending: int | None, last_error_ts: float | None
    ) -> None:
        """What Telegram says of the webhook; None is unknown, and not shown."""
        self._known.set("twr_webhook_url_matches", matches)
        self._known.set("twr_webhook_pending_updates", pending)
        self._known.set("twr_webhook_last_error_timestamp_seconds", last_error_ts)

    def probe_success(self, timestamp: float | None) -> None:
        """A probe was answered, at this unix time; None: this process does not probe."""
        self._known.set("twr_probe_last_success_timestamp_seconds", timestamp)

    def alerts_firing(self, names: Iterable[str]) -> None:
        """All alerts that fire now; a name given twice counts twice."""
        firing = Tally(names)
        for name in self._alerts.keys() | firing.keys():
            self._alerts[name].set(firing[name])

    def config_reload(self, ok: bool) -> None:
        """The configuration was read again, and taken or not."""
        self._reload.set(ok)

    def task_restarted(self, task: str) -> None:
        """A supervised task crashed and was started again."""
        self._restarts[task].inc()

    def forget_route(self, route: str) -> None:
        """A route is gone for good: none of its series remains."""
        for children in (self._durations, self._lags, self._oldest, self._breakers):
            children.remove(route)
        for pairs in (self._deliveries, self._queue, self._dead):
            pairs.remove_all(lambda key: key[0] == route)

    def render(self) -> bytes:
        """The text format, version 0.0.4, of everything."""
        return generate_latest(_WithoutCreated(self._registry))

    def _ingress(self, registry: CollectorRegistry) -> None:
        received = Counter(
            "twr_updates_received_total",
            "Updates answered 202, by what became of them.",
            ["outcome"],
            registry=registry,
        )
        rejected = Counter(
            "twr_updates_rejected_total",
            "Requests to the ingress that were refused.",
            ["reason"],
            registry=registry,
        )
        self._received: _Children[str, Counter] = _Children(received, RECEIVED)
        self._rejected: _Children[str, Counter] = _Children(rejected, REJECTED)

    def _routes(self, registry: CollectorRegistry) -> None:
        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(name, text, labels, registry=registry)

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(name, text, ["route"], buckets=buckets, registry=registry)

        deliveries = Counter(
            "twr_deliveries_total",
            "Delivery attempts, by how they ended.",
            ["route", "outcome"],
            registry=registry,
        )
        self._deliveries: _Children[tuple[str, str], Counter] = _Children(deliveries)
        self._durations: _Children[str, Histogram] = _Children(
            histogram("twr_delivery_duration_seconds", "Time of one attempt.", DURATIONS)
        )
        self._lags: _Children[str, Histogram] = _Children(
            histogram("twr_delivery_lag_seconds", "From acceptance to the target's 2xx.", LAGS)
        )
        self._queue: _Children[tuple[str, str], Gauge] = _Children(
            gauge("twr_queue_jobs", "Jobs of a route, by state.", "route", "state")
        )
        self._oldest: _Children[str, Gauge] = _Children(
            gauge("twr_queue_oldest_seconds", "Age of the oldest waiting update.", "route")
        )
        self._dead: _Children[tuple[str, str], Gauge] = _Children(
            gauge("twr_dead_letters", "Dead letters kept.", "route", "reason")
        )
        self._breakers: _Children[str, Gauge] = _Children(
            gauge("twr_breaker_open", "1 while a route is paused, its target being away.", "route")
        )

    def _store(self, registry: CollectorRegistry) -> None:
        def counter(name: str, text: str) -> Counter:
            return Counter(name, text, registry=registry)

        self._lease_expired = counter("twr_lease_expired_total", "Leases that ran out.")
        self._trimmed = counter(
            "twr_dead_letters_trimmed_total", "Dead letters dropped, being too old or too many."
        )
        self._stale_settles = counter(
            "twr_stale_settles_total", "Settles refused, the job being somebody else's by then."
        )
        self._store_errors = counter("twr_store_errors_total", "Commands to the store that failed.")

    def _watch(self, registry: CollectorRegistry) -> None:
        self._known = _Known(
            {
                "twr_webhook_url_matches": "1 when Telegram has the configured webhook URL.",
                "twr_webhook_pending_updates": "Updates that wait at Telegram.",
                "twr_webhook_last_error_timestamp_seconds": "Telegram's last delivery error.",
                "twr_probe_last_success_timestamp_seconds": "The last answered getWebhookInfo.",
            }
        )
        registry.register(self._known)
        self._alerts: _Children[str, Gauge] = _Children(
            Gauge("twr_alerts_firing", "Alerts that fire now.", ["alert"], registry=registry)
        )
        self._reload = Gauge(
            "twr_config_last_reload_successful",
            "0 while the file on disk is refused and the last good one runs.",
            registry=registry,
        )
        self._reload.set(1)
        self._restarts: _Children[str, Counter] = _Children(
            Counter(
                "twr_task_restarts_total",
                "Supervised tasks that crashed and were started again.",
                ["task"],
                registry=registry,
            )
        )


Key = TypeVar("Key", str, tuple[str, str])


class _Children(dict[Key, Child], Generic[Key, Child]):
    """The labelled children of a metric, looked up once: `labels()` is dear on a hot path."""

    def __init__(self, metric: Child, seen: Iterable[Key] = ()) -> None:
        super().__init__()
        self._metric: Child = metric
        for key in seen:
            self[key]

    def __missing__(self, key: Key) -> Child:
        child: Child = self._metric.labels(*_labels(key))
        self[key] = child
        return child

    def remove(self, key: Key) -> None:
        """Forget one child, if there is one."""
        if self.pop(key, None) is not None:
            self._metric.remove(*_labels(key))

    def remove_all(self, chosen: Callable[[Key], bool]) -> None:
        """Forget the children whose key is chosen."""
        for key in [key for key in self if chosen(key)]:
            self.remove(key)


def _labels(key: str | tuple[str, str]) -> tuple[str, ...]:
    return (key,) if isinstance(key, str) else key


class _Known(Collector):
    """Gauges that are shown only while their value is known: an unknown one is not 0."""

    def __init__(self, documentation: Mapping[str, str]) -> None:
        self._documentation = documentation
        self._values: dict[str, float] = {}

    def set(self, name: str, value: float | None) -> None:
        if value is None:
            self._values.pop(name, None)
        else:
            self._values[name] = float(value)

    def collect(self) -> Iterator[Metric]:
        for name, text in self._documentation.items():
            if name in self._values:
                yield GaugeMetricFamily(name, text, value=self._values[name])


class _Process(ProcessCollector):
    """The usual process_* metrics, also where ProcSubset=pid hides /proc/stat."""

    def _boot_time(self) -> Any:
        try:
            return super()._boot_time()  # type: ignore[no-untyped-call]
        except OSError:
            clock = getattr(time, "CLOCK_BOOTTIME", None)
            return 0 if clock is None else time.time() - time.clock_gettime(clock)


class _WithoutCreated(Collector):
    """A registry without the `_created` series, which double the output and tell nothing."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def collect(self) -> Iterator[Metric]:
        for metric in self._registry.collect():
            metric.samples = [each for each in metric.samples if not each.name.endswith("_created")]
            yield metric
