"""The status and the metrics: what the store counts, joined with what this process knows."""

from collections.abc import Callable, Collection, Mapping
from typing import Any

from twr.core.jobs import RouteStats, Stats
from twr.core.text import utc
from twr.edges.metrics import Metrics
from twr.errors import StoreError
from twr.services.delivery import RunningRoute
from twr.services.probe import Board
from twr.supervisor.process import Process

NO_BREAKER = "none"


class Status:
    """Answers for the admin listener; costs one call to the store, whatever waits there."""

    def __init__(
        self,
        process: Process,
        board: Board,
        version: str,
        instance: str,
        mask: Callable[[str], str],
    ) -> None:
        self._process = process
        self._board = board
        self._version = version
        self._instance = instance
        self._mask = mask

    async def json(self) -> dict[str, Any]:
        """The whole status, as `twr status --json` prints it."""
        stats = await self._stats()
        fitness = self._process.fitness
        board = self._board.snapshot()
        return {
            "version": self._version,
            "instance": self._instance,
            "started_at": utc(self._process.started_at),
            "store": {"ok": stats is not None, "server": fitness.server if fitness else None},
            **board,
            "webhook": {name: self._masked(value) for name, value in board["webhook"].items()},
            "routes": self._routes(stats),
        }

    async def metrics(self) -> bytes:
        """The metrics, those of the queues as of now."""
        stats = await self._stats()
        metrics = self._process.metrics
        for run in self._running().values():
            metrics.breaker(run.route.name, run.breaker.open)
        if stats is not None:
            _measure(metrics, stats, self._running())
        return metrics.render()

    def _masked(self, value: Any) -> Any:
        """The webhook's URL may hold the bot token; what Telegram quotes may hold anything."""
        return self._mask(value) if isinstance(value, str) else value

    async def _stats(self) -> Stats | None:
        try:
            return await self._process.store.stats()
        except StoreError:
            return None

    def _running(self) -> Mapping[str, RunningRoute]:
        delivery = self._process.delivery
        return {run.route.name: run for run in delivery.routes()} if delivery else {}

    def _routes(self, stats: Stats | None) -> list[dict[str, Any]]:
        running = self._running()
        counted = {route.name: route for route in stats.routes} if stats else {}
        dead = _dead_by_route(stats)
        others = [name for name, it in counted.items() if name not in running and it.waiting]
        gone = [name for name in dead if name not in running and name not in others]
        now_ms = stats.now_ms if stats else 0
        return [
            _row(name, running.get(name), counted.get(name), dead.get(name, 0), now_ms)
            for name in [*running, *sorted(others), *sorted(gone)]
        ]


def _row(
    name: str, run: RunningRoute | None, counted: RouteStats | None, dead: int, now_ms: int
) -> dict[str, Any]:
    row = {
        "name": name,
        "ready": counted.ready + counted.suspects if counted else 0,
        "delayed": counted.delayed if counted else 0,
        "processing": counted.processing if counted else 0,
        "waiting": counted.waiting if counted else 0,
        "oldest_seconds": oldest_seconds(counted, now_ms),
        "dead": dead,
        "breaker": run.breaker.state if run else NO_BREAKER,
        "delivered": run.delivered if run else 0,
        "failed_attempts": run.failed_attempts if run else 0,
    }
    served = run is not None or (counted is not None and counted.served(now_ms))
    return row if served else {**row, "orphaned": True}


def oldest_seconds(counted: RouteStats | None, now_ms: int) -> float:
    """How long the oldest waiting update has waited, in seconds; 0.0 where none waits."""
    if counted is None or counted.oldest_ms is None:
        return 0.0
    return round(max(0, now_ms - counted.oldest_ms) / 1000, 3)


def _dead_by_route(stats: Stats | None) -> dict[str, int]:
    found: dict[str, int] = {}
    for (route, _), count in (stats.dead if stats else {}).items():
        found[route] = found.get(route, 0) + count
    return found


def _measure(metrics: Metrics, stats: Stats, running: Collection[str]) -> None:
    """The store knows a route for ever: one that is gone is shown while work waits for it."""
    for route in stats.routes:
        if route.name not in running and not route.waiting:
            metrics.forget_route(route.name)
            continue
        metrics.queue(
            route.name,
            ready=route.ready + route.suspects,
            delayed=route.delayed,
            processing=route.processing,
            waiting=route.waiting,
            oldest_seconds=oldest_seconds(route, stats.now_ms),
        )
    metrics.dead_letters(stats.dead)
