"""What one store call carries."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pytest

from twr.core.jobs import Accepted, Arrival, Destination, Offer
from twr.services.ingress import Accepting
from until import until

pytestmark = pytest.mark.anyio


class Store:
    """Remembers how many updates each call brought; the first waits until `go`."""

    def __init__(self, ready: tuple[str, ...] = ()) -> None:
        self.ready = ready
        self.calls: list[int] = []
        self.go = asyncio.Event()

    async def accept(
        self, arrivals: Sequence[Arrival], offers: Sequence[Offer] = ()
    ) -> list[Accepted]:
        self.calls.append(len(arrivals))
        await self.go.wait()
        return [Accepted(len(arrival.destinations), ready=self.ready) for arrival in arrivals]


class Slots:
    """None are free; `fast`: a few deliveries follow each other."""

    def __init__(self, *, fast: bool = False) -> None:
        self._fast = fast
        self.news_of: list[str] = []

    @contextmanager
    def offering(self, _: set[str]) -> Iterator[tuple[list[Offer], Callable[[Accepted], None]]]:
        yield [], lambda _: None

    def news(self, names: Sequence[str]) -> None:
        self.news_of += names

    def turns_fast(self) -> bool:
        return self._fast


def arrival(number: int, routes: int, size: int) -> Arrival:
    to = tuple(Destination(f"r{n}", True, 100) for n in range(routes))
    return Arrival(number, "message", "1", 60, b"x" * size, to)


@pytest.mark.parametrize(
    ("routes", "size", "calls"),
    [
        (1, 500, [1, 64, 36]),
        (3, 500, [1, 64, 36]),
        (20, 500, [1, 21, 21, 21, 21, 16]),
        (1, 1_000_000, [1, *[5] * 20]),
    ],
)
async def test_a_call_is_bounded_by_updates_jobs_and_bytes(
    routes: int, size: int, calls: list[int]
) -> None:
    """What waits while a call is under way goes in as few calls as the bounds allow."""
    store = Store()
    accepting = Accepting(store, Slots())
    first = asyncio.create_task(accepting.accept(arrival(0, routes, size)))
    await until(lambda: store.calls)
    rest = [asyncio.create_task(accepting.accept(arrival(n, routes, size))) for n in range(1, 101)]
    await asyncio.sleep(0)
    store.go.set()
    assert {answer.deliveries for answer in await asyncio.gather(first, *rest)} == {routes}
    assert store.calls == calls


@pytest.mark.parametrize(
    ("fast", "ready", "calls"),
    [
        (True, (), [1, *[1] * 20]),
        (False, (), [1, 20]),
        (True, ("r0",), [1, 20]),
    ],
)
async def test_a_busy_chat_is_not_kept_waiting(
    fast: bool, ready: tuple[str, ...], calls: list[int]
) -> None:
    """While a few deliveries follow each other fast and updates wait behind them in their lane,
    each is stored on its own; without such deliveries, or with jobs that can start, they are
    stored as many at once as are waiting."""
    store, slots = Store(ready), Slots(fast=fast)
    accepting = Accepting(store, slots)
    first = asyncio.create_task(accepting.accept(arrival(0, 1, 500)))
    await until(lambda: store.calls)
    rest = [asyncio.create_task(accepting.accept(arrival(n, 1, 500))) for n in range(1, 21)]
    await asyncio.sleep(0)
    store.go.set()
    await asyncio.gather(first, *rest)
    assert store.calls == calls
    assert slots.news_of == list(ready) * len(calls)
