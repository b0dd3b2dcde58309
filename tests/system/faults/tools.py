"""Telegram's part, and what is measured of the daemon meanwhile."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import aiohttp
from redis.asyncio import Redis

from store.invariants import read, violations
from system.harness import Daemon
from twr.edges.store.keys import Keys
from until import until

KEYS = Keys("twr", "main")


async def hand_over(daemon: Daemon, update: Mapping[str, Any], within: float = 60.0) -> None:
    """Send an update as Telegram does: again and again until it is answered 202."""
    await hand_over_to(lambda: daemon, update, within)


async def hand_over_to(
    choose: Callable[[], Daemon], update: Mapping[str, Any], within: float = 60.0
) -> None:
    """The same, where there is more than one daemon: each time to the one that is chosen."""
    async with asyncio.timeout(within):
        while await answer(choose(), update) != 202:  # noqa: ASYNC110 - nobody tells Telegram
            await asyncio.sleep(0.05)


async def hand_over_all(daemon: Daemon, updates: Iterable[Mapping[str, Any]]) -> None:
    """Hand over updates of different chats, 20 at a time."""
    waiting = deque(updates)

    async def work() -> None:
        while waiting:
            await hand_over(daemon, waiting.popleft())

    await asyncio.gather(*(work() for _ in range(20)))


async def answer(daemon: Daemon, update: Mapping[str, Any]) -> int:
    """The status that an update is answered with; 0 where the connection broke."""
    try:
        status, _ = await daemon.post(update)
    except (aiohttp.ClientError, TimeoutError, OSError):
        return 0
    assert status in (202, 503)
    return status


async def command(url: str, *words: str | int) -> Any:
    """One command's answer of a store."""
    redis = Redis.from_url(url)
    try:
        return await redis.execute_command(*words)
    finally:
        await redis.aclose()


async def in_order(url: str) -> list[str]:
    """What is wrong in the store; the picture is true only while nothing is going on there."""
    redis = Redis.from_url(url)
    try:
        return violations(await read(redis, KEYS))
    finally:
        await redis.aclose()


async def left(url: str) -> list[str]:
    """The keys of the store that are there only for updates on their way."""
    names = [name.decode() for name in await command(url, "KEYS", f"{KEYS.tag}:*")]
    gone = ("job", "update", "route", "expiry", "dead-letter")
    return [name for name in names if name.removeprefix(f"{KEYS.tag}:").split(":")[0] in gone]


async def forgotten(url: str, within: float = 10.0) -> None:
    """Wait until nothing is left of any update or job."""
    found: list[str] = ["not looked yet"]

    async def empty() -> bool:
        nonlocal found
        found = await left(url)
        return not found

    try:
        await until(empty, within)
    except AssertionError:
        assert found == []


LEVELS = ("debug", "info", "notice", "warning", "error", "critical")


def most_lines_a_second(log: str) -> int:
    """The most lines of a log that were written within any one second."""
    moments: list[float] = []
    for line in log.splitlines():
        try:
            moments.append(datetime.fromisoformat(line.split(" ", 1)[0]).timestamp())
        except ValueError:
            moments += moments[-1:]
    assert moments or not log, "no line begins with a time"
    most, window = 0, deque[float]()
    for moment in moments:
        window.append(moment)
        while window[0] <= moment - 1:
            window.popleft()
        most = max(most, len(window))
    return most


def complaints(log: str) -> list[str]:
    """The lines of a log from warning on, but for what is said at the start of how it is set up."""
    of_setup = ("probe off", "append-only file", "appendfsync")
    levels = [(line[25:34].strip(), line) for line in log.splitlines()]
    assert not log or any(level in LEVELS for level, _ in levels), "no line has a level"
    return [
        line
        for level, line in levels
        if level in LEVELS[3:] and not any(words in line for words in of_setup)
    ]


def processor_seconds(pid: int) -> float:
    """The processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def resident(pid: int) -> int:
    """The memory of a process, in bytes."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096


def percentile(values: Iterable[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]
