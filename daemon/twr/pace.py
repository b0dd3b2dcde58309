"""Waiting that a stop signal ends."""

from collections.abc import Iterable

import anyio


async def wait(event: anyio.Event, seconds: float) -> bool:
    """Wait until `event` is set, at most `seconds`; True when it is set."""
    if event.is_set():
        return True
    with anyio.move_on_after(seconds):
        await event.wait()
    return event.is_set()


async def wait_for_first(events: Iterable[anyio.Event], seconds: float) -> None:
    """Wait until one of `events` is set, at most `seconds`."""
    with anyio.move_on_after(seconds):
        async with anyio.create_task_group() as tasks:

            async def end_at(event: anyio.Event) -> None:
                await event.wait()
                tasks.cancel_scope.cancel()

            for event in events:
                tasks.start_soon(end_at, event)
