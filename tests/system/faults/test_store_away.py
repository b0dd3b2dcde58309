"""Stores that are away for a while, and come back."""

import asyncio
import os
import signal
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from servers import Server
from system.faults.conftest import StartServer
from system.faults.tools import (
    forgotten,
    hand_over,
    most_lines_a_second,
    processor_seconds,
)
from system.faults.wire import Wire
from system.harness import SECRET, SECRET_HEADER, Daemon, as_telegram_writes, message, route
from targets import Received, Target, answering, held
from until import until

pytestmark = pytest.mark.anyio

Toggle = Callable[[], None]

# Seconds that the store has for an answer.
PATIENCE = 5
# Of the route whose target fails at first; each retry comes so many seconds later.
FAILED_BEFORE, FAILED_AFTER = 1000, 1001
BACKOFF = 5


async def refused(daemon: Daemon, update_id: int) -> None:
    """An update sent now is answered 503 with Retry-After within the time the store has."""
    began = time.monotonic()
    async with daemon.session.post(
        daemon.url,
        data=as_telegram_writes(message(update_id, chat=update_id)),
        headers={SECRET_HEADER: SECRET},
    ) as response:
        answer = await response.json()
        assert (response.status, answer) == (503, {"status": "unavailable"})
        assert response.headers["Retry-After"] == "5"
    took = time.monotonic() - began
    assert took < PATIENCE + 1
    # Telegram itself would wait longer.
    await asyncio.sleep(max(0.0, 3 - took))


async def fails_at_first(request: Received, writer: asyncio.StreamWriter) -> bool:
    return await answering(500 if request.attempt == 1 else 200)(request, writer)


@dataclass(frozen=True)
class Stand:
    """A daemon with two targets: one that answers once the gate is open, one that fails at
    first."""

    daemon: Daemon
    target: Target
    failing: Target
    gate: asyncio.Event


class Stage:
    """Daemons with targets of their own, started in an exit stack."""

    def __init__(self, directory: Path, stack: AsyncExitStack) -> None:
        self._directory = directory
        self._stack = stack

    async def stand(self, name: str, url: str | None) -> Stand:
        gate = asyncio.Event()
        target = await self._stack.enter_async_context(Target(held(gate)))
        failing = await self._stack.enter_async_context(Target(fails_at_first))
        backoff = {"first": f"{BACKOFF}s", "factor": 1, "max": "1m", "jitter": 0}
        fails = {"chat_ids": [FAILED_BEFORE, FAILED_AFTER]}
        routes = [
            route("shop", target, **{"except": fails}),
            route("failing", failing, match=fails, backoff=backoff),
        ]
        (self._directory / name).mkdir()
        daemon = Daemon(self._directory / name, routes, store_url=url)
        return Stand(await self._stack.enter_async_context(daemon), target, failing, gate)


async def survives(stand: Stand, away: Toggle, back: Toggle, seconds: int) -> None:
    """An outage with one delivery in flight, others waiting, one delayed: the ingress answers 503,
    and within 10 s of its end all is delivered, nothing twice, with few lines and little work.
    What fails after that is retried as ever."""
    daemon, target, failing, gate = stand.daemon, stand.target, stand.failing, stand.gate
    await daemon.accepts(message(1), message(2), message(3), message(4, chat=8))
    await daemon.accepts(message(FAILED_BEFORE, chat=FAILED_BEFORE))
    await target.has(2)
    await daemon.comes("failing", delayed=1)
    written, used = len(daemon.log()), processor_seconds(daemon.pid)
    ends = time.monotonic() + seconds
    away()
    gate.set()
    tried = [999]
    while time.monotonic() < ends - 7:
        tried.append(99 + len(tried))
        await refused(daemon, tried[-1])
    await asyncio.sleep(ends - time.monotonic())
    assert (await daemon.readiness())[0] == 503
    assert processor_seconds(daemon.pid) - used < seconds * 0.1 + 2
    back()
    healed = time.monotonic()
    await asyncio.gather(*(hand_over(daemon, message(n, chat=n)) for n in tried))
    wanted = sorted([1, 2, 3, 4, *tried])
    await until(lambda: set(target.ids) >= set(wanted), 10, "all updates")
    await until(lambda: failing.ids == [FAILED_BEFORE] * 2, 10, "the retry")
    assert time.monotonic() - healed < 10
    await hand_over(daemon, message(FAILED_AFTER, chat=FAILED_AFTER))
    await daemon.comes("failing", within=BACKOFF + 5, delivered=2, waiting=0, dead=0)
    assert failing.ids == [FAILED_BEFORE] * 2 + [FAILED_AFTER] * 2
    assert failing.received[3].at - failing.received[2].at >= BACKOFF
    await daemon.ready(10)
    await daemon.comes("shop", waiting=0, processing=0, dead=0)
    assert sorted(target.ids) == wanted
    assert [n for n in target.ids if n < 4] == [1, 2, 3]
    assert most_lines_a_second(daemon.log()[written:]) < 20
    await forgotten(daemon.store_url)


def pid_of(server: Server) -> int:
    assert server.process is not None
    return server.process.pid


def freezing(pid: int) -> tuple[Toggle, Toggle]:
    """How to stop a process, and how to let it go on."""
    return lambda: os.kill(pid, signal.SIGSTOP), lambda: os.kill(pid, signal.SIGCONT)


def embedded_pid(daemon: Daemon) -> int:
    return int((daemon.directory / "state" / "valkey.pid").read_text())


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_long_outages(short_path: Path, start_server: StartServer) -> None:
    """A store is down or silent for 120 s, or packets to it, from it or both are lost for 60 s:
    503 meanwhile, and all goes on by itself within 10 s of the end."""
    async with AsyncExitStack() as stack:
        stage = Stage(short_path, stack)
        down, frozen = start_server("redis"), start_server("valkey")
        outages = [
            survives(await stage.stand("down", down.url), down.kill, down.start, 120),
            survives(await stage.stand("frozen", frozen.url), *freezing(pid_of(frozen)), 120),
        ]
        embedded = await stage.stand("embedded", None)
        freeze, thaw = freezing(embedded_pid(embedded.daemon))
        stack.callback(thaw)
        outages.append(survives(embedded, freeze, thaw, 120))
        kinds = (("both", "redis"), ("requests", "valkey"), ("answers", "redis"))
        for way, kind in kinds:
            wire = await stack.enter_async_context(Wire(start_server(kind).socket))
            away = wire.drop if way == "both" else getattr(wire, way).stop
            outages.append(survives(await stage.stand(way, wire.store_url), away, wire.heal, 60))
        await asyncio.gather(*outages)


async def test_short_outages_again_and_again(short_path: Path, server: Server) -> None:
    """Connections cut, packets lost and slow for moments, 20 times under load: all delivered."""
    async with (
        Target() as target,
        Wire(server.socket) as wire,
        Daemon(short_path, [route("shop", target)], store_url=wire.store_url) as daemon,
    ):
        sent = 0

        async def load(seconds: float) -> None:
            nonlocal sent
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                sent += 1
                await hand_over(daemon, message(sent, chat=sent % 20))

        for turn in range(20):
            loads = [asyncio.create_task(load(0.4)) for _ in range(5)]
            await asyncio.sleep(0.1)
            if turn % 2:
                wire.cut()
            else:
                wire.drop()
                await asyncio.sleep(0.2)
                wire.answers.delay = wire.requests.delay = 0.01
                wire.heal()
            await asyncio.gather(*loads)
            wire.answers.delay = wire.requests.delay = 0.0
        wanted = set(range(1, sent + 1))
        await until(lambda: set(target.ids) == wanted, 30, "all updates")
        await daemon.comes("shop", waiting=0, processing=0, dead=0)
        await forgotten(server.url)
    assert len(target.ids) == sent


class Unready(Daemon):
    """Counts as started once it answers, with whatever readiness."""

    async def ready(self, within: float = 20.0) -> None:
        async def answers() -> bool:
            return (await self.readiness())[0] != 0

        await until(answers, within, "the listener")


async def test_a_store_that_is_down_at_the_start(
    short_path: Path, start_server: StartServer
) -> None:
    """The daemon starts, answers 503 and says why, and takes its work up when the store is up."""
    server = start_server()
    server.stop()
    async with (
        Target() as target,
        Unready(short_path, [route("shop", target)], store_url=server.url) as daemon,
    ):
        await refused(daemon, 1)
        status, body = await daemon.readiness()
        assert status == 503
        assert "store" in body["reasons"][0]
        server.start()
        await hand_over(daemon, message(1), within=10)
        await daemon.comes("shop", delivered=1)
