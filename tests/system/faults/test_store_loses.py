"""Stores that lose what they were given: their data, their scripts."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import pytest

from servers import SERVERS, Server
from system.faults.conftest import StartServer
from system.faults.tools import (
    KEYS,
    answer,
    command,
    complaints,
    forgotten,
    hand_over,
    hand_over_all,
    in_order,
    most_lines_a_second,
)
from system.harness import Daemon, message, route
from targets import Target, late
from until import until

pytestmark = pytest.mark.anyio

Lose = Callable[[], Awaitable[object]]

NEXT = 1_000_000


@dataclass
class Sent:
    """When updates were sent: those that were answered 202, and the others."""

    accepted: dict[int, float] = field(default_factory=dict)
    refused: dict[int, float] = field(default_factory=dict)

    async def keep_on(self, daemon: Daemon, stop: asyncio.Event) -> None:
        """New updates of 20 chats, one after another, by four senders."""
        numbers = count()

        async def send() -> None:
            while not stop.is_set():
                n, began = next(numbers), time.monotonic()
                status = await answer(daemon, message(n, chat=n % 20))
                (self.accepted if status == 202 else self.refused)[n] = began
                await asyncio.sleep(0.01)

        await asyncio.gather(*(send() for _ in range(4)))


async def lose_in_traffic(
    daemon: Daemon, target: Target, lose: Lose, *, refusals: bool = False
) -> None:
    """While updates come, let the store lose its data: the next one is delivered within 5 s of
    that, and so are those that follow. `refusals`: some of them may be answered 503 before."""
    sent = Sent()
    stop = asyncio.Event()
    sending = asyncio.create_task(sent.keep_on(daemon, stop))
    await target.has(50)
    written = len(daemon.log())
    began = time.monotonic()
    await lose()
    lost_at, answered = time.monotonic(), len(sent.accepted)
    await hand_over(daemon, message(NEXT, chat=NEXT), within=5)
    await until(lambda: NEXT in target.ids, 5, "the next one")
    await until(lambda: len(sent.accepted) > answered + 80, 20, "updates after the loss")
    stop.set()
    await sending
    later = {n: at for n, at in sent.accepted.items() if at > lost_at}
    await until(lambda: set(later) <= set(target.ids), 5, "what came after the loss")
    arrived = {request.update_id: request.at for request in target.received}
    assert arrived[NEXT] - began < 5
    assert max(arrived[n] - at for n, at in later.items()) < 5
    assert refusals or sent.refused == {}
    assert max(sent.refused.values(), default=began) < began + 5
    assert len(target.ids) == len(set(target.ids))
    assert most_lines_a_second(daemon.log()[written:]) < 20
    assert daemon.running
    await daemon.comes("shop", processing=0, waiting=0)


@pytest.mark.parametrize("kind", ["embedded", *SERVERS])
async def test_a_store_that_is_emptied(
    kind: str, short_path: Path, start_server: StartServer
) -> None:
    """FLUSHALL in the middle of traffic: what comes then is delivered within 5 s, in few words."""
    url = None if kind == "embedded" else start_server(kind).url
    async with (
        Target(late(0.05)) as target,
        Daemon(short_path, [route("shop", target)], store_url=url) as daemon,
    ):
        await lose_in_traffic(daemon, target, lambda: command(daemon.store_url, "FLUSHALL"))
        await daemon.ready()
        await forgotten(daemon.store_url)


async def test_a_store_that_comes_back_empty(short_path: Path, start_server: StartServer) -> None:
    """A killed store whose data is gone with it is served as a new one."""
    server = start_server("redis", "--appendonly", "no")

    async def replace() -> None:
        server.kill()
        server.start()

    async with (
        Target(late(0.05)) as target,
        Daemon(short_path, [route("shop", target)], store_url=server.url) as daemon,
    ):
        await lose_in_traffic(daemon, target, replace, refusals=True)
        await daemon.ready()
        await forgotten(server.url)


async def test_two_instances_on_a_store_that_is_emptied(
    short_path: Path, start_server: StartServer
) -> None:
    """Neither takes the other for a rival, and both go on."""
    server = start_server()
    async with AsyncExitStack() as stack:
        target = await stack.enter_async_context(Target(late(0.05)))
        daemons = []
        for name in ("a", "b"):
            (short_path / name).mkdir()
            daemon = Daemon(
                short_path / name, [route("shop", target)], store_url=server.url, instance=name
            )
            daemons.append(await stack.enter_async_context(daemon))
        await lose_in_traffic(daemons[0], target, lambda: command(server.url, "FLUSHALL"))
        assert all(daemon.running for daemon in daemons)


@pytest.mark.parametrize("lost", ["instance", "routes", "alerts", "all", "processing", "seen"])
async def test_a_store_that_lost_one_kind_of_key(
    lost: str, short_path: Path, start_server: StartServer
) -> None:
    """Whatever keys are deleted in the middle of traffic, what comes then is delivered."""
    server = start_server()
    patterns = {
        "instance": f"{KEYS.tag}:instance:*",
        "routes": f"{KEYS.tag}:routes",
        "alerts": f"{KEYS.tag}:alerts",
        "all": f"{KEYS.tag}:route:*:all",
        "processing": f"{KEYS.tag}:route:*:processing",
        "seen": f"{KEYS.tag}:seen:*",
    }

    async def lose() -> None:
        names = await command(server.url, "KEYS", patterns[lost])
        assert names or lost == "alerts"
        if names:
            await command(server.url, "DEL", *(name.decode() for name in names))

    async with (
        Target(late(0.05)) as target,
        Daemon(short_path, [route("shop", target)], store_url=server.url) as daemon,
    ):
        await lose_in_traffic(daemon, target, lose)
        await forgotten(server.url)


async def test_scripts_that_are_flushed_under_load(short_path: Path, server: Server) -> None:
    """The store forgets its scripts again and again: no error, no line, all delivered once."""

    async with (
        Target() as target,
        Daemon(short_path, [route("shop", target)], store_url=server.url) as daemon,
    ):
        written = len(daemon.log())
        done = count(1)

        async def accept(caller: int) -> None:
            for n in range(caller, 300, 20):
                await daemon.accepts(message(n, chat=n))
                if next(done) % 10 == 0:
                    await command(server.url, "SCRIPT", "FLUSH")

        await asyncio.gather(*(accept(caller) for caller in range(20)))
        await daemon.comes("shop", delivered=300, failed_attempts=0)
        assert complaints(daemon.log()[written:]) == []
        assert await daemon.metric("twr_store_errors_total") == 0
        assert await in_order(server.url) == []
    assert sorted(target.ids) == list(range(300))


async def test_a_store_that_is_restarted_under_load(short_path: Path, server: Server) -> None:
    """Its scripts and connections are gone three times: all that got a 202 is delivered."""
    async with (
        Target(late(0.01)) as target,
        Daemon(short_path, [route("shop", target)], store_url=server.url) as daemon,
    ):
        sending = asyncio.create_task(
            hand_over_all(daemon, (message(n, chat=n % 50) for n in range(300)))
        )
        for enough in (20, 100, 180):
            await target.has(enough)
            server.kill() if enough == 100 else server.stop()
            server.start()
        await sending
        await until(lambda: set(target.ids) == set(range(300)), 20, "all updates")
        await daemon.comes("shop", processing=0, waiting=0)
        await forgotten(server.url)
    assert len(target.ids) == 300
