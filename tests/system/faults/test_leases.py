"""Leases: what a slow target, a long delay, a second instance or a death does to them."""

import asyncio
import time
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from servers import Server
from system.faults.conftest import StartServer
from system.faults.tools import KEYS, command, forgotten, in_order
from system.harness import Daemon, message, route
from targets import Received, Target, answering, by_turns, hanging, held, late

pytestmark = pytest.mark.anyio

# A lease is the timeout and this, in seconds.
MARGIN = 10


class Instances:
    """Daemons of different names on one store."""

    def __init__(self, directory: Path, server: Server, stack: AsyncExitStack) -> None:
        self._directory = directory
        self._server = server
        self._stack = stack

    async def start(self, name: str, routes: list[dict[str, Any]], **settings: Any) -> Daemon:
        path = self._directory / f"{name}-{len(list(self._directory.iterdir()))}"
        path.mkdir()
        daemon = Daemon(path, routes, store_url=self._server.url, instance=name, **settings)
        return await self._stack.enter_async_context(daemon)


async def test_answers_just_before_the_timeout(short_path: Path, start_server: StartServer) -> None:
    """Targets that answer half a second before the timeout get exactly one POST each, also with
    another instance that looks for leases to take over."""
    server = start_server("redis")
    async with AsyncExitStack() as stack:
        targets = {}
        for timeout in (1, 2, 5, 10):
            targets[timeout] = await stack.enter_async_context(Target(late(timeout - 0.5)))
        routes = [route(f"t{n}", target, timeout=f"{n}s") for n, target in targets.items()]
        instances = Instances(short_path, server, stack)
        a = await instances.start("a", routes)
        b = await instances.start("b", routes)
        for n in range(5):
            await (a, b)[n % 2].accepts(message(n, chat=n), deliveries=4)
        await forgotten(server.url, 15)
        for target in targets.values():
            assert sorted(target.ids) == list(range(5))
        for name in (f"t{n}" for n in targets):
            rows = [await each.route(name) for each in (a, b)]
            assert sum(row["delivered"] for row in rows) == 5
            assert sum(row["failed_attempts"] for row in rows) == 0


async def test_delays_of_three_leases(short_path: Path, start_server: StartServer) -> None:
    """Retry-After and a backoff of three leases: exactly one later POST, and not before."""
    server = start_server()
    three = 3 * (0.5 + MARGIN)
    backoff = {"first": "1s", "factor": 1, "max": "10m", "jitter": 0}
    asks = answering(503, Retry_After=str(int(three + 1)))
    limited = answering(429, Retry_After=str(int(three + 1)))
    patient = {**backoff, "first": f"{three:g}s"}
    async with AsyncExitStack() as stack:
        kinds = {
            "asked": (asks, backoff),
            "limited": (limited, backoff),
            "backoff": (answering(500), patient),
        }
        targets, routes = {}, []
        for name, (first, policy) in kinds.items():
            target = Target(by_turns(first, answering()))
            targets[name] = await stack.enter_async_context(target)
            routes.append(route(name, target, timeout="500ms", backoff=policy))
        instances = Instances(short_path, server, stack)
        a = await instances.start("a", routes)
        await instances.start("b", routes)
        await a.accepts(message(1), deliveries=3)
        await forgotten(server.url, three + 10)
        for target in targets.values():
            assert [request.attempt for request in target.received] == [1, 2]
            assert three <= target.received[1].at - target.received[0].at < three + 5


async def loses_its_place(state: str, directory: Path, server: Server) -> None:
    """A process dies, and a job of its in this state is taken out of the place it waits in."""
    backoff = {"first": "2s", "factor": 1, "max": "2s", "jitter": 0}
    shop = {"timeout": "1s", "concurrency": 1, "backoff": backoff}
    async with (
        Target(answering(500) if state == "delayed" else hanging()) as target,
        Daemon(directory, [route("shop", target, **shop)], store_url=server.url) as daemon,
    ):
        await daemon.accepts(message(1), message(2), message(3, chat=8), message(4, chat=8))
        await target.has(2 if state == "delayed" else 1)
        if state == "delayed":
            await daemon.comes("shop", delayed=2)
        await daemon.kill()
        key = f"{KEYS.tag}:route:shop"
        words: dict[str, tuple[str | int, ...]] = {
            "processing": ("ZREM", f"{key}:processing", "1/shop"),
            "ready": ("LREM", f"{key}:ready", 0, "3/shop"),
            "waiting": ("LREM", f"{key}:lane:7", 0, "2/shop"),
            "delayed": ("ZREM", f"{key}:delayed", "1/shop"),
        }
        assert await command(server.url, *words[state]) == 1
        assert await in_order(server.url) != []
        before, died = len(target.received), time.monotonic()
        target.behaviour = answering()
        await daemon.start()
        await forgotten(server.url, 120)
        assert time.monotonic() - died < 120
        seen = [request.update_id for request in target.received[before:]]
        assert sorted(seen) == [1, 2, 3, 4]
        assert [n for n in seen if n < 3] == [1, 2]


async def test_a_job_that_lost_its_place(short_path: Path, start_server: StartServer) -> None:
    """A member is deleted from the lease set, the ready list, the delays or a lane, and the
    process dies: it is delivered within 2 min all the same, and its chat goes on."""
    async with asyncio.TaskGroup() as tasks:
        for state in ("processing", "ready", "delayed", "waiting"):
            directory = short_path / state
            directory.mkdir()
            tasks.create_task(loses_its_place(state, directory, start_server()))


async def test_a_lease_deleted_under_a_living_process(
    short_path: Path, start_server: StartServer
) -> None:
    """The delivery under way counts; nothing is sent twice, nothing stays."""
    server = start_server()
    gate = asyncio.Event()
    async with (
        Target(held(gate)) as target,
        Daemon(short_path, [route("shop", target)], store_url=server.url) as daemon,
    ):
        await daemon.accepts(message(1), message(2))
        await target.has(1)
        await command(server.url, "DEL", f"{KEYS.tag}:route:shop:processing")
        gate.set()
        await daemon.comes("shop", delivered=2, waiting=0)
        await forgotten(server.url)
    assert target.ids == [1, 2]


@pytest.mark.parametrize("name", ["b", "a"])
async def test_a_start_beside_live_deliveries(
    name: str, short_path: Path, start_server: StartServer
) -> None:
    """B starts while A has 20 deliveries of 5 s, with a name of its own or with A's: no second
    POST, and in each chat the next one is sent only after the one before has ended."""
    server = start_server()
    ended: list[int] = []

    async def slow(request: Received, writer: asyncio.StreamWriter) -> bool:
        done = await late(5 if request.update_id < 100 else 0)(request, writer)
        ended.append(request.update_id)
        return done

    async with AsyncExitStack() as stack:
        target = await stack.enter_async_context(Target(slow))
        instances = Instances(short_path, server, stack)
        a = await instances.start("a", [route("shop", target)])
        await a.accepts(*(message(n, chat=n) for n in range(20)))
        await a.accepts(*(message(100 + n, chat=n) for n in range(20)))
        await target.has(20)
        b = await instances.start(name, [route("shop", target)])
        await forgotten(server.url, 20)
        if name == "a":
            assert await a.ended() == 76
        assert b.running
    assert sorted(target.ids) == [*range(20), *range(100, 120)]
    for n in range(20):
        assert ended.index(n) < ended.index(100 + n)


async def test_an_instance_that_is_gone_for_good(
    short_path: Path, start_server: StartServer
) -> None:
    """kill -9 of A, which holds 20 leases and never comes back: B delivers A's jobs within a lease
    and 5 s, those in flight, those waiting behind them and those that were delayed."""
    server = start_server("redis")
    gate = asyncio.Event()
    async with AsyncExitStack() as stack:
        target = await stack.enter_async_context(Target(held(gate)))
        failing = await stack.enter_async_context(Target(answering(500)))
        routes = [
            route("shop", target, timeout="5s", match={"chat_ids": list(range(1, 21))}),
            route("later", failing, fallback=True, backoff={"first": "10s", "max": "10s"}),
        ]
        instances = Instances(short_path, server, stack)
        a = await instances.start("a", routes)
        await a.accepts(*(message(n, chat=n) for n in range(1, 21)), message(50, chat=50))
        await a.accepts(*(message(100 + n, chat=n) for n in range(1, 21)))
        await target.has(20)
        await a.comes("later", delayed=1)
        b = await instances.start("b", routes)
        for n in range(1, 21):
            assert await command(server.url, "HGET", KEYS.job(f"{n}/shop"), "owner") == b"a"
        assert (await b.route("shop"))["delivered"] == 0
        await a.kill()
        died = time.monotonic()
        failing.behaviour = answering()
        gate.set()
        await forgotten(server.url, 5 + MARGIN + 5)
        assert time.monotonic() - died < 5 + MARGIN + 5
        twice, once = dict.fromkeys(range(1, 21), 2), dict.fromkeys(range(101, 121), 1)
        assert Counter(target.ids) == twice | once
        assert [request.attempt for request in failing.received] == [1, 2]
        assert {request.attempt for request in target.received} == {1}
        assert await b.metric("twr_stale_settles_total") == 0


@pytest.mark.parametrize("kills", [1, 2])
async def test_a_crash_burns_no_attempt(
    kills: int, short_path: Path, start_server: StartServer
) -> None:
    """With one attempt allowed, kill -9 during the POST: delivered all the same, also after a
    second such crash."""
    server = start_server("redis")
    async with (
        Target(hanging()) as target,
        Daemon(short_path, [route("shop", target, max_attempts=1)], store_url=server.url) as daemon,
    ):
        await daemon.accepts(*(message(n, chat=n) for n in range(10)))
        for turn in range(kills):
            await target.has(10 * (turn + 1))
            await daemon.kill()
            if turn == kills - 1:
                target.behaviour = answering()
            await daemon.start()
        await daemon.comes("shop", waiting=0, delivered=10, dead=0, failed_attempts=0)
        await forgotten(server.url)
    assert len(target.ids) == 10 * (kills + 1)
    assert {request.attempt for request in target.received} == {1}


async def test_sigterm_with_deliveries_in_flight(
    short_path: Path, start_server: StartServer
) -> None:
    """Ten of 3 s all finish, the process exits with 0, no attempt is burned and none is repeated;
    what waited behind them is delivered by the next process, in order."""
    server = start_server()
    async with (
        Target(late(3)) as target,
        Daemon(short_path, [route("shop", target, max_attempts=1)], store_url=server.url) as daemon,
    ):
        await daemon.accepts(*(message(n, chat=n) for n in range(10)))
        await daemon.accepts(*(message(100 + n, chat=n) for n in range(10)))
        await target.has(10)
        assert await daemon.stop() == 0
        assert sorted(target.ids) == list(range(10))
        assert await in_order(server.url) == []
        target.behaviour = answering()
        await daemon.start()
        await daemon.comes("shop", waiting=0, delivered=10, dead=0)
        await forgotten(server.url)
    assert sorted(target.ids) == [*range(10), *range(100, 110)]
    assert {request.attempt for request in target.received} == {1}
