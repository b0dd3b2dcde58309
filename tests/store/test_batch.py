"""Callers that share a call: each gets its own answer, or its own error."""

import asyncio
from collections.abc import Sequence

import pytest

from twr.edges.store.batch import Batch
from twr.errors import StoreError, StoreFull, StoreUnavailable

pytestmark = pytest.mark.anyio


class Server:
    """Answers `n` with `-n` once it is let to, and keeps what it was asked, call by call."""

    def __init__(self) -> None:
        self.calls: list[list[int]] = []
        self.go = asyncio.Semaphore(0)
        self.asked = asyncio.Semaphore(0)
        self.error: Exception | None = None
        self.wrong = 0

    async def __call__(self, items: Sequence[int]) -> Sequence[int | StoreError]:
        self.calls.append(list(items))
        self.asked.release()
        await self.go.acquire()
        if self.error is not None:
            raise self.error
        return [-n if n >= 0 else StoreFull(str(n)) for n in items][self.wrong :]

    def batch(
        self, most: int = 100, most_weight: int = 10_000, patience: float = 60.0
    ) -> Batch[int, int]:
        return Batch(self, most=lambda: most, patience=patience, weigh=abs, most_weight=most_weight)


async def started(server: Server, batch: Batch[int, int], *items: int) -> list[asyncio.Task[int]]:
    """A first call under way that holds item 0, and these items waiting behind it, in order."""
    tasks = [asyncio.create_task(batch.submit(0))]
    await server.asked.acquire()
    tasks += [asyncio.create_task(batch.submit(n)) for n in items]
    await asyncio.sleep(0)
    return tasks


async def test_those_who_come_meanwhile_share_the_next_call() -> None:
    """One call at a time, the items in the order of their callers, each answer to its own."""
    server = Server()
    batch = server.batch()
    tasks = await started(server, batch, 3, 1, 2)
    assert server.calls == [[0]]
    server.go.release()
    server.go.release()
    assert await asyncio.gather(*tasks) == [0, -3, -1, -2]
    assert server.calls == [[0], [3, 1, 2]]


async def test_patience_ends() -> None:
    """Who waits too long is told so, its item sent or not; the next call is not hurt."""
    server = Server()
    batch = server.batch(patience=0.05)
    tasks = await started(server, batch, 1)
    for task in tasks:
        with pytest.raises(StoreUnavailable, match="too slow"):
            await task
    server.go.release()
    server.go.release()
    assert await batch.submit(2) == -2
    assert server.calls == [[0], [2]]


async def test_those_who_come_at_once_share_the_first_call() -> None:
    """Nobody waits for company, but who is there already comes along."""
    server = Server()
    batch = server.batch()
    server.go.release()
    assert await asyncio.gather(*(batch.submit(n) for n in range(5))) == [0, -1, -2, -3, -4]
    assert server.calls == [[0, 1, 2, 3, 4]]


@pytest.mark.parametrize(
    ("most", "weight", "calls"),
    [
        (2, 10_000, [[5, 1], [7, 2], [9]]),
        (100, 8, [[5, 1, 7], [2, 9]]),
        (100, 1, [[5], [1], [7], [2], [9]]),
    ],
)
async def test_a_call_has_limits(most: int, weight: int, calls: list[list[int]]) -> None:
    """No more items than so many; no further item once they weigh so much."""
    server = Server()
    batch = server.batch(most, weight)
    tasks = await started(server, batch, 5, 1, 7, 2, 9)
    for _ in range(6):
        server.go.release()
    assert await asyncio.gather(*tasks) == [0, -5, -1, -7, -2, -9]
    assert server.calls[1:] == calls


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (StoreFull("the store is full"), StoreFull, "the store is full"),
        (StoreUnavailable("away"), StoreUnavailable, "away"),
        (ValueError("bad"), StoreError, "ValueError: bad"),
    ],
)
async def test_an_error_goes_to_each_caller_of_its_call_alone(
    error: Exception, kind: type[StoreError], text: str
) -> None:
    """All callers of a call that failed are told, each by an error of its own; the next call
    goes on as if nothing had been."""
    server = Server()
    batch = server.batch()
    server.error = error
    tasks = await started(server, batch, 1)
    server.go.release()
    await server.asked.acquire()
    tasks += [asyncio.create_task(batch.submit(2))]
    await asyncio.sleep(0)
    server.go.release()
    found = await asyncio.gather(*tasks[:2], return_exceptions=True)
    assert [(type(one), str(one)) for one in found] == [(kind, text)] * 2
    assert found[0] is not found[1]
    server.error = None
    server.go.release()
    assert await tasks[2] == -2
    server.go.release()
    assert await batch.submit(3) == -3
    assert server.calls == [[0], [1], [2], [3]]


async def test_an_error_does_not_tell_what_was_sent() -> None:
    """The text of an encoding error is short; its repr would hold the whole message."""
    server = Server()
    server.error = UnicodeEncodeError("utf-8", "a private text \ud800", 15, 16, "surrogates")
    server.go.release()
    with pytest.raises(StoreError) as caught:
        await server.batch().submit(1)
    assert "private" not in str(caught.value)


async def test_one_item_can_fail_alone() -> None:
    """An error among the answers is raised by its own caller, and by no other."""
    server = Server()
    batch = server.batch()
    server.go.release()
    found = await asyncio.gather(*(batch.submit(n) for n in (1, -7, 2)), return_exceptions=True)
    assert (found[0], found[2]) == (-1, -2)
    assert isinstance(found[1], StoreFull)


async def test_too_few_answers_are_an_error_of_all() -> None:
    """Nobody waits for an answer that does not come, or takes that of another."""
    server = Server()
    server.wrong = 1
    batch = server.batch()
    server.go.release()
    found = await asyncio.gather(*(batch.submit(n) for n in (1, 2)), return_exceptions=True)
    assert [str(one) for one in found] == ["2 questions got 1 answers"] * 2


async def test_a_cancelled_caller_takes_back_what_was_not_sent() -> None:
    """Its item is not sent, and the others get what they asked for."""
    server = Server()
    batch = server.batch()
    tasks = await started(server, batch, 1, 2, 3)
    tasks[2].cancel()
    server.go.release()
    server.go.release()
    found = await asyncio.gather(*tasks, return_exceptions=True)
    assert [found[0], found[1], found[3]] == [0, -1, -3]
    assert isinstance(found[2], asyncio.CancelledError)
    assert server.calls == [[0], [1, 3]]


async def test_a_caller_cancelled_during_its_call_harms_nobody() -> None:
    """The call goes on for the others; the answer of the one that left is dropped."""
    server = Server()
    batch = server.batch()
    tasks = await started(server, batch, 1, 2)
    server.go.release()
    await server.asked.acquire()
    tasks[1].cancel()
    await asyncio.sleep(0)
    server.go.release()
    found = await asyncio.gather(*tasks, return_exceptions=True)
    assert (found[0], found[2]) == (0, -2)
    assert isinstance(found[1], asyncio.CancelledError)


async def test_when_all_have_left_nothing_is_sent() -> None:
    """A batch of cancelled callers ends the round, and the next caller begins a new one."""
    server = Server()
    batch = server.batch()
    tasks = await started(server, batch, 1, 2)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    server.go.release()
    server.go.release()
    assert await batch.submit(9) == -9
    assert server.calls == [[0], [9]]


async def test_a_call_that_is_ended_from_outside_cancels_no_caller() -> None:
    """Those it was made for, and those who wait for the next one, are told that it failed."""

    async def ended(_: Sequence[int]) -> Sequence[int | StoreError]:
        raise asyncio.CancelledError

    batch = Batch(ended, most=lambda: 1, patience=60.0, weigh=abs, most_weight=10)
    found = await asyncio.gather(*(batch.submit(n) for n in (1, 2)), return_exceptions=True)
    assert [repr(one) for one in found] == [
        "StoreUnavailable('the call to the store was ended')"
    ] * 2
