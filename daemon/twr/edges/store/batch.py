"""Callers that arrive while a call is under way share the next one."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Generic, TypeVar

from twr.errors import StoreError, StoreUnavailable

Item = TypeVar("Item")
Answer = TypeVar("Answer")


class Batch(Generic[Item, Answer]):
    """Hands items to `call` in order, as many at once as are waiting, one call at a time.

    `most` tells before each call how many it may take; `patience` is how many seconds a caller
    waits at most.

    `call` returns an answer or an error per item; an error it raises goes to each of its items. A
    caller that is cancelled takes back an item that has not been sent yet and harms no other.
    """

    def __init__(
        self,
        call: Callable[[Sequence[Item]], Awaitable[Sequence[Answer | StoreError]]],
        *,
        most: Callable[[], int],
        patience: float,
        weigh: Callable[[Item], int],
        most_weight: int,
    ) -> None:
        self._call = call
        self._most = most
        self._patience = patience
        self._weigh = weigh
        self._most_weight = most_weight
        self._waiting: deque[tuple[Item, asyncio.Future[Answer]]] = deque()
        self._runner: asyncio.Task[None] | None = None

    async def submit(self, item: Item) -> Answer:
        """The answer to one item; raises what its call raised, StoreUnavailable when that takes
        longer than the patience."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Answer] = loop.create_future()
        self._waiting.append((item, future))
        if self._runner is None:
            self._runner = asyncio.create_task(self._run())
        timer = loop.call_later(self._patience, _give_up, future)
        try:
            return await future
        finally:
            timer.cancel()

    async def _run(self) -> None:
        try:
            while batch := self._take():
                await self._answer(batch)
        finally:
            self._runner = None
            _fail(self._waiting)
            self._waiting.clear()

    async def _answer(self, batch: list[tuple[Item, asyncio.Future[Answer]]]) -> None:
        try:
            answers = await self._call([item for item, _ in batch])
            if len(answers) != len(batch):
                raise StoreError(f"{len(batch)} questions got {len(answers)} answers")
        except Exception as error:
            for _, future in batch:
                if not future.done():
                    # Each its own: an exception object gathers the tracebacks of all who raise it.
                    future.set_exception(_copy(error))
            return
        except BaseException:
            _fail(batch)
            raise
        for (_, future), answer in zip(batch, answers, strict=False):
            if future.done():
                continue
            if isinstance(answer, StoreError):
                future.set_exception(answer)
            else:
                future.set_result(answer)

    def _take(self) -> list[tuple[Item, asyncio.Future[Answer]]]:
        batch: list[tuple[Item, asyncio.Future[Answer]]] = []
        weight, most = 0, self._most()
        while self._waiting and len(batch) < most and weight < self._most_weight:
            item, future = self._waiting.popleft()
            if not future.done():
                batch.append((item, future))
                weight += self._weigh(item)
        return batch


def _fail(items: Iterable[tuple[Any, "asyncio.Future[Any]"]]) -> None:
    """The call was ended from outside: to its callers that is no cancellation of their own."""
    for _, future in items:
        if not future.done():
            future.set_exception(StoreUnavailable("the call to the store was ended"))


def _give_up(future: "asyncio.Future[Any]") -> None:
    if not future.done():
        future.set_exception(StoreUnavailable("the store is too slow"))


def _copy(error: Exception) -> Exception:
    if isinstance(error, StoreError):
        return type(error)(*error.args)
    # Not its repr: that of an encoding error holds the whole text.
    return StoreError(f"{type(error).__name__}: {error}")
