"""A task of the daemon that crashes is started again, and one that is cancelled is not."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

import anyio
import anyio.lowlevel
import pytest

from twr.core.clock import Clock
from twr.errors import StoreUnfit, TwrError
from twr.supervisor.tasks import Restarts, supervise

pytestmark = pytest.mark.anyio


class Watched:
    """What is heard of a task whose runs end with these errors, one after the other."""

    def __init__(self, *errors: BaseException) -> None:
        self.errors = list(errors)
        self.restarts: list[str] = []
        self.failures: list[TwrError] = []
        self.stop = anyio.Event()

    async def body(self) -> None:
        await anyio.lowlevel.checkpoint()
        if self.errors:
            raise self.errors.pop(0)

    async def supervised(self, body: Callable[[], Awaitable[None]] | None = None) -> None:
        clock = Clock(time=time.time, monotonic=time.monotonic)
        given = Restarts(clock, self.stop, self.restarts.append, self.failures.append)
        await supervise("delivery", body or self.body, given)


async def test_a_crash_is_told_and_followed_by_another_run(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """With its traceback in the log."""
    task = Watched(ValueError("planted"))
    await task.supervised()
    assert (task.restarts, task.failures) == (["delivery"], [])
    assert [it.getMessage() for it in caplog.records] == ["task crashed task=delivery"]
    assert "ValueError: planted" in caplog.text


async def test_a_cancellation_that_nobody_asked_for_is_a_crash(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A library may let one out; the group that the task is in goes on."""
    task = Watched(asyncio.CancelledError())
    beside = Watched()
    async with anyio.create_task_group() as group:
        group.start_soon(task.supervised)
        group.start_soon(beside.supervised)
    assert (task.restarts, beside.restarts) == (["delivery"], [])
    assert [it.levelno for it in caplog.records] == [logging.ERROR]


async def test_a_task_that_is_cancelled_ends() -> None:
    """It is not started again."""
    task = Watched()
    async with anyio.create_task_group() as group:
        group.start_soon(task.supervised, anyio.sleep_forever)
        await anyio.wait_all_tasks_blocked()
        group.cancel_scope.cancel()
    assert task.restarts == []


async def test_a_cancellation_within_is_none_of_the_task() -> None:
    """A scope in the body that was cancelled leaves nothing behind that looks like one."""
    errors = [ValueError("planted"), asyncio.CancelledError()]

    async def body() -> None:
        with anyio.CancelScope() as scope:
            scope.cancel()
            await anyio.sleep_forever()
        if errors:
            raise errors.pop(0)

    task = Watched()
    await task.supervised(body)
    assert task.restarts == ["delivery"] * 2


async def test_five_crashes_in_a_minute_end_the_process() -> None:
    """The fifth is the last."""
    task = Watched(*(ValueError(str(n)) for n in range(9)))
    await task.supervised()
    assert [str(it) for it in task.failures] == ["task delivery crashed 5 times in 60 s"]
    assert len(task.errors) == 4


async def test_an_error_with_a_meaning_is_no_crash() -> None:
    """What it says can't be mended by another run."""
    task = Watched(StoreUnfit("planted"))
    await task.supervised()
    assert ([str(it) for it in task.failures], task.restarts) == (["planted"], [])
