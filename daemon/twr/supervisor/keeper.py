"""Keeps the embedded store running for as long as the process does."""

import logging
from collections.abc import Callable

import anyio

from twr.core.clock import Clock
from twr.core.text import kv
from twr.edges.embedded import Embedded
from twr.errors import StoreUnavailable, TwrError

log = logging.getLogger("twr.store")

FIRST_PAUSE, MOST_PAUSE = 0.1, 5.0
# A server that ran for so long is given a quick restart again.
STEADY = 60.0


async def keep(
    embedded: Embedded, clock: Clock, started: Callable[[], None], stop: anyio.Event
) -> None:
    """Start the server, again whenever it ends (a full disk, a kill), until `stop`; each failure
    is a line, none is the process's end. `started` is called after each start.

    Raises TwrError for what no restart can mend.
    """
    failure: TwrError | None = None
    async with anyio.create_task_group() as tasks:

        async def run() -> None:
            nonlocal failure
            try:
                await _run(embedded, clock, started)
            except TwrError as error:
                failure = error
                tasks.cancel_scope.cancel()

        tasks.start_soon(run)
        await stop.wait()
        tasks.cancel_scope.cancel()
    if failure is not None:
        raise failure


async def _run(embedded: Embedded, clock: Clock, started: Callable[[], None]) -> None:
    pause = FIRST_PAUSE
    while True:
        began = clock.monotonic()
        try:
            await embedded.start()
            started()
            code = await embedded.wait()
            log.error("embedded store ended %s", kv(code=code, said=embedded.last_words()))
        except StoreUnavailable as error:
            log.error("%s", error)
        if clock.monotonic() - began > STEADY:
            pause = FIRST_PAUSE
        await anyio.sleep(pause)
        pause = min(pause * 2, MOST_PAUSE)
