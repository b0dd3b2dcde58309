"""Updates that arrive together are stored together, and what may start at once starts at once."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from twr.core.jobs import Accepted, Arrival, Offer
from twr.edges.store.batch import Batch
from twr.errors import StoreError, StoreFull, StoreUnavailable

# What one store call may carry.
MOST_UPDATES = 64
MOST_BYTES = 4 * 1024 * 1024
# What a job counts for in it, so that many routes make no call that keeps the store for long.
JOB = 10_000
# Seconds until a caller is told that the store is too slow.
PATIENCE = 5.0


class Store(Protocol):
    """What accepting asks of the store."""

    async def accept(
        self, arrivals: Sequence[Arrival], offers: Sequence[Offer] = ()
    ) -> list[Accepted]: ...


class Slots(Protocol):
    """What accepting asks of the delivery."""

    def offering(
        self, names: set[str]
    ) -> AbstractContextManager[tuple[list[Offer], Callable[[Accepted], None]]]: ...
    def news(self, names: Sequence[str]) -> None: ...
    def turns_fast(self) -> bool: ...


class Accepting:
    """Stores updates, one store call for all that wait, whatever the number of routes."""

    def __init__(self, store: Store, slots: Slots) -> None:
        self._store = store
        self._slots = slots
        self._lane_bound = False
        self._batch = Batch(
            self._accept_all,
            most=self._most,
            patience=PATIENCE,
            weigh=lambda arrival: len(arrival.body) + JOB * len(arrival.destinations),
            most_weight=MOST_BYTES,
        )

    async def accept(self, arrival: Arrival) -> Accepted:
        """Store one update; raises StoreError and its kinds."""
        return await self._batch.submit(arrival)

    def _most(self) -> int:
        # Where a few deliveries follow each other fast and the rest waits behind them, in a busy
        # chat, each takes some turns of the event loop. With one update stored at a time these are
        # short: the chat gets five times as much, and accepting still outpaces it.
        return 1 if self._lane_bound else MOST_UPDATES

    async def _accept_all(self, arrivals: Sequence[Arrival]) -> Sequence[Accepted | StoreError]:
        try:
            return await self._accept_some(arrivals)
        except (StoreUnavailable, StoreFull):
            raise
        except StoreError as error:
            # One damaged key must not refuse all others: each goes on its own.
            if len(arrivals) == 1:
                return [error]
        return [answer for one in arrivals for answer in await self._accept_all([one])]

    async def _accept_some(self, arrivals: Sequence[Arrival]) -> Sequence[Accepted]:
        names = {to.route for arrival in arrivals for to in arrival.destinations}
        with self._slots.offering(names) as (offers, start):
            answers = await self._store.accept(arrivals, offers)
            for accepted in answers:
                start(accepted)
        self._lane_bound = self._slots.turns_fast() and _most_wait(answers)
        if ready := {name for accepted in answers for name in accepted.ready}:
            self._slots.news(tuple(ready))
        return answers


def _most_wait(answers: Sequence[Accepted]) -> bool:
    """Whether more than half of these jobs wait behind another one of their lane."""
    jobs = sum(accepted.deliveries or 0 for accepted in answers)
    can_start = sum(len(accepted.leased) + len(accepted.ready) for accepted in answers)
    return jobs > 2 * can_start
