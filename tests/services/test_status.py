"""The status, joined of what the store counts and what the process knows."""

import time
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from twr.core.clock import Clock
from twr.core.jobs import RouteStats, Stats
from twr.edges.metrics import Metrics
from twr.edges.store import Store
from twr.services.probe import Board
from twr.supervisor.process import Process
from twr.supervisor.status import Status

pytestmark = pytest.mark.anyio

NOW_MS = 1_790_000_000_000


@dataclass
class Counts:
    """A store that only counts."""

    routes: list[RouteStats] = field(default_factory=list)
    dead: dict[tuple[str, str], int] = field(default_factory=dict)

    async def stats(self) -> Stats:
        """What it counts."""
        return Stats(NOW_MS, tuple(self.routes), self.dead)


async def rows(counts: Counts) -> list[dict[str, Any]]:
    """The routes in the status of a process that has none of its own."""
    clock = Clock(time.time, time.monotonic)
    process = Process(clock, Metrics("1"), cast("Store", counts), None)
    status = await Status(process, Board("vps-1"), "1", "vps-1", str).json()
    found: list[dict[str, Any]] = status["routes"]
    return found


@pytest.mark.parametrize(("served", "orphaned"), [(0, False), (5000, False), (5001, True)])
@pytest.mark.parametrize("waiting", [0, 3])
async def test_a_route_of_another_instance_is_no_orphan(
    served: int, orphaned: bool, waiting: int
) -> None:
    """Neither with work that waits nor with dead letters alone."""
    route = RouteStats("theirs", NOW_MS - served, waiting, 0, 0, waiting, None, 0)
    (row,) = await rows(Counts([route], {("theirs", "expired"): 1}))
    assert (row["waiting"], row["dead"], row.get("orphaned", False)) == (waiting, 1, orphaned)


async def test_dead_letters_of_a_route_that_nobody_knows_are_an_orphans() -> None:
    """The store forgets a route sooner than what died in it."""
    (row,) = await rows(Counts(dead={("old", "expired"): 2}))
    assert (row["name"], row["dead"], row["orphaned"]) == ("old", 2, True)
