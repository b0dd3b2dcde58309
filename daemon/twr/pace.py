"""Waiting that a stop signal ends."""

import anyio


async def wait(event: anyio.Event, seconds: float) -> bool:
    """Wait until `event` is set, at most `seconds`; True when it is set."""
    if event.is_set():
        return True
    with anyio.move_on_after(seconds):
        await event.wait()
    return event.is_set()
