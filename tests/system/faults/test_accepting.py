"""Crashes in the middle of accepting, and what Telegram sends again."""

import asyncio
import time
from pathlib import Path

import pytest

from servers import Server
from system.faults.conftest import StartServer
from system.faults.tools import KEYS, answer, command, forgotten, hand_over
from system.faults.wire import Direction, Wire
from system.harness import Daemon, message, route
from targets import Target
from until import until

pytestmark = pytest.mark.anyio

MARK = b"it is this one"
# The first one makes the store know the script.
FIRST = message(1, chat=8)
UPDATE = message(4242, text=MARK.decode())
FOLLOWS = message(4243, text="the next of its chat")


async def stored(server: Server) -> bool:
    return bool(await command(server.url, "EXISTS", KEYS.update("4242")))


async def reach(way: Direction, server: Server, wire: Wire) -> None:
    """Wait until the accept call is on its way, or has been made and its answer is on the way."""
    if way is wire.requests:
        await until(lambda: MARK in way.lost, 5, "the call")
    else:
        await until(lambda: stored(server), 5, "the call's effect")


@pytest.mark.parametrize("victim", ["daemon", "store", "connection"])
@pytest.mark.parametrize("way", ["requests", "answers"])
async def test_a_crash_in_the_middle_of_an_accept(
    way: str, victim: str, short_path: Path, start_server: StartServer
) -> None:
    """The call or its answer is lost with its sender, its receiver or their connection: Telegram
    sends the update again, and it is delivered once."""
    server = start_server("redis")
    async with (
        Target() as target,
        Wire(server.socket) as wire,
        Daemon(short_path, [route("shop", target)], store_url=wire.store_url) as daemon,
    ):
        await daemon.accepts(FIRST)
        await daemon.comes("shop", delivered=1)
        direction: Direction = getattr(wire, way)
        wire.on(MARK, direction.stop)
        sending = asyncio.create_task(answer(daemon, UPDATE))
        await reach(direction, server, wire)
        if victim == "daemon":
            await daemon.kill()
        elif victim == "store":
            server.kill()
        wire.cut()
        wire.heal()
        if victim == "store":
            server.start()
        status = await sending
        # It is tried once more while the caller waits, unless nobody is there to try it.
        assert status in ((0,) if victim == "daemon" else (202, 503))
        if victim == "daemon":
            await daemon.start()
        await hand_over(daemon, UPDATE)
        await hand_over(daemon, FOLLOWS)
        await until(lambda: target.ids == [1, 4242, 4243], 10, "one delivery of each")
        await daemon.comes("shop", waiting=0, processing=0)
        await forgotten(server.url)
        assert target.ids == [1, 4242, 4243]


async def test_a_call_of_a_dead_process_that_arrives_late(
    short_path: Path, start_server: StartServer
) -> None:
    """A command of a killed process reaches the store after its successor has begun: what it
    leased is delivered once, at the latest when the lease ends."""
    server = start_server()
    async with (
        Target() as target,
        Wire(server.socket) as wire,
        Daemon(
            short_path, [route("shop", target, timeout="500ms")], store_url=wire.store_url
        ) as daemon,
    ):
        await daemon.accepts(FIRST)
        await daemon.comes("shop", delivered=1)
        wire.on(MARK, wire.requests.stop)
        sending = asyncio.create_task(answer(daemon, UPDATE))
        await reach(wire.requests, server, wire)
        await daemon.kill()
        assert await sending == 0
        daemon.settings["store"] = {"url": server.url}
        await daemon.start()
        wire.heal()
        await until(lambda: stored(server), 5, "the late call")
        assert await answer(daemon, UPDATE) == 202
        await until(lambda: target.ids == [1, 4242], 10.5 + 5, "the delivery")
        await daemon.comes("shop", waiting=0, processing=0)
        await forgotten(server.url)
    assert target.ids == [1, 4242]


async def test_a_store_without_memory_in_the_middle_of_an_accept(
    short_path: Path, server: Server
) -> None:
    """Nothing of a refused update stays behind: sent again when there is room, it is delivered."""
    async with (
        Target() as target,
        Daemon(short_path, [route("shop", target)], store_url=server.url) as daemon,
    ):
        await command(server.url, "CONFIG", "SET", "maxmemory", 1)
        before = await command(server.url, "DBSIZE")
        answers = await asyncio.gather(*(answer(daemon, UPDATE) for _ in range(10)))
        assert answers == [503] * 10
        assert await command(server.url, "DBSIZE") == before
        await command(server.url, "CONFIG", "SET", "maxmemory", 0)
        await daemon.accepts(UPDATE, FOLLOWS)
        await daemon.comes("shop", delivered=2, waiting=0)
        assert target.ids == [4242, 4243]


async def test_a_store_that_answers_after_the_caller_has_gone(
    short_path: Path, start_server: StartServer
) -> None:
    """Telegram hangs up on a slow store: the update is stored all the same, and delivered once."""
    server = start_server()
    async with (
        Target() as target,
        Wire(server.socket) as wire,
        Daemon(short_path, [route("shop", target)], store_url=wire.store_url) as daemon,
    ):
        wire.answers.delay = 0.5
        for _ in range(3):
            sending = asyncio.create_task(daemon.post(UPDATE))
            await asyncio.wait((sending,), timeout=0.2)
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
        wire.answers.delay = 0.0
        await hand_over(daemon, UPDATE)
        await until(lambda: target.ids == [4242], 10, "the delivery")
        await daemon.comes("shop", waiting=0, processing=0)
        await forgotten(server.url)
    assert target.ids == [4242]


async def test_fifty_copies_on_connections_of_their_own(
    short_path: Path, start_server: StartServer
) -> None:
    """Copies that come at once, to two instances of one store: all are answered 202, one delivery
    comes of it."""
    server = start_server()
    paths = [short_path / name for name in ("a", "b")]
    for path in paths:
        path.mkdir()
    async with Target() as target:
        shop = [route("shop", target), route("support", target)]
        async with (
            Daemon(paths[0], shop, store_url=server.url, instance="a") as a,
            Daemon(paths[1], shop, store_url=server.url, instance="b") as b,
        ):
            for update_id in range(1, 6):
                answers = await asyncio.gather(
                    *(each.post(message(update_id)) for each in (a, b) for _ in range(25))
                )
                assert {status for status, _ in answers} == {202}
                queued = [body for _, body in answers if body["status"] == "queued"]
                assert queued == [{"status": "queued", "deliveries": 2}]
            await target.has(10)
            for name in ("shop", "support"):
                await a.comes(name, waiting=0)
            await forgotten(server.url)
    assert sorted(target.ids) == sorted([1, 2, 3, 4, 5] * 2)


async def test_copies_during_an_outage(short_path: Path, start_server: StartServer) -> None:
    """A store that is slower than the 5 s of an answer: each copy is answered in time, and one
    delivery comes of all."""
    server = start_server()
    async with (
        Target() as target,
        Wire(server.socket) as wire,
        Daemon(short_path, [route("shop", target)], store_url=wire.store_url) as daemon,
    ):
        wire.answers.stop()
        began = time.monotonic()
        answers = await asyncio.gather(*(answer(daemon, UPDATE) for _ in range(50)))
        assert answers == [503] * 50
        assert time.monotonic() - began < 6
        wire.heal()
        await hand_over(daemon, UPDATE)
        await until(lambda: target.ids == [4242], 10, "the delivery")
        await daemon.comes("shop", waiting=0, processing=0)
    assert target.ids == [4242]
