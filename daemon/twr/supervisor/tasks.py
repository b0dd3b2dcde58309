"""A supervised task: it is restarted when it crashes, until it crashes too often."""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import anyio

from twr import pace
from twr.core.clock import Clock
from twr.core.text import kv
from twr.errors import TwrError

log = logging.getLogger("twr.supervisor")

MOST_CRASHES = 5
WITHIN = 60.0
FIRST_PAUSE, MOST_PAUSE = 0.1, 5.0


@dataclass(frozen=True, slots=True)
class Restarts:
    """`stop` ends the waiting for a restart; `restarted` counts it, by task; `failed` is told
    when a task can't go on, and takes the process down."""

    clock: Clock
    stop: anyio.Event
    restarted: Callable[[str], None]
    failed: Callable[[TwrError], None]


async def supervise(name: str, body: Callable[[], Awaitable[None]], given: Restarts) -> None:
    """Run `body` until it returns. A crash is logged and followed by another run, five within
    60 s by the end of the process; a TwrError is no crash: what it says can't be mended."""
    crashes: deque[float] = deque(maxlen=MOST_CRASHES)
    pause = FIRST_PAUSE
    while True:
        try:
            await body()
            return
        except TwrError as error:
            given.failed(error)
            return
        except (Exception, asyncio.CancelledError) as error:
            if isinstance(error, asyncio.CancelledError) and _is_cancelled():
                raise
            log.exception("task crashed %s", kv(task=name))
        now = given.clock.monotonic()
        if crashes and now - crashes[-1] > WITHIN:
            pause = FIRST_PAUSE
        crashes.append(now)
        if len(crashes) == MOST_CRASHES and now - crashes[0] <= WITHIN:
            given.failed(TwrError(f"task {name} crashed {MOST_CRASHES} times in {WITHIN:.0f} s"))
            return
        if await pace.wait(given.stop, pause):
            return
        pause = min(pause * 2, MOST_PAUSE)
        given.restarted(name)


def _is_cancelled() -> bool:
    """Whether somebody cancels this task: what a library cancels of its own may come up here as
    well, and would end the whole group as if that had been asked for."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0
