"""Keeps the embedded store running for as long as the process does."""

import logging
from collections.abc import Callable

import anyio

from twr import pace
from twr.core.clock import Clock
from twr.core.text import kv
from twr.edges.embedded import Embedded
from twr.errors import StoreUnavailable

log = logging.getLogger("twr.store")

FIRST_PAUSE, MOST_PAUSE = 0.1, 5.0
# A server that ran for so long is given a quick restart again.
STEADY = 60.0


async def keep(
    embedded: Embedded, clock: Clock, started: Callable[[], None], stop: anyio.Event
) -> None:
    """Start the server, again whenever it ends (a full disk, a kill), until `stop`; each failure
    is a line, none is the process's end. `started` is called after each start."""
    pause = FIRST_PAUSE
    while not stop.is_set():
        began = clock.monotonic()
        try:
            await embedded.start()
            started()
            ended = await _ended(embedded, stop)
        except StoreUnavailable as error:
            log.error("%s", error)
        else:
            if ended is None:
                return
            log.error("embedded store ended %s", kv(code=ended, said=embedded.last_words()))
        pause = FIRST_PAUSE if clock.monotonic() - began > STEADY else min(pause * 2, MOST_PAUSE)
        await pace.wait(stop, pause)


async def _ended(embedded: Embedded, stop: anyio.Event) -> int | None:
    """The server's exit code; None when `stop` came first."""
    code: int | None = None
    async with anyio.create_task_group() as tasks:

        async def until_end() -> None:
            nonlocal code
            code = await embedded.wait()
            tasks.cancel_scope.cancel()

        tasks.start_soon(until_end)
        await stop.wait()
        tasks.cancel_scope.cancel()
    return code
