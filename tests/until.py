"""Waiting for a condition, with a deadline and never longer than needed."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, overload

T = TypeVar("T")
WHAT = "what was waited for"


@overload
async def until(
    condition: Callable[[], Awaitable[T]], within: float = 10.0, what: str = WHAT
) -> T: ...
@overload
async def until(condition: Callable[[], T], within: float = 10.0, what: str = WHAT) -> T: ...
async def until(condition: Callable[[], Any], within: float = 10.0, what: str = WHAT) -> Any:
    """The first true value that `condition` gives or awaits; fails after `within` seconds."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + within
    while True:
        found = condition()
        if inspect.isawaitable(found):
            found = await found
        if found:
            return found
        if loop.time() > deadline:
            raise AssertionError(f"{what}: not within {within:g} s")
        await asyncio.sleep(0.01)
