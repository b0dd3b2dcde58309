"""kill -9 at random, again and again, while updates keep coming."""

import asyncio
import os
import random
import signal
from collections import Counter
from contextlib import AsyncExitStack
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import redis.asyncio

from system.faults.conftest import StartServer
from system.faults.tools import KEYS, command, forgotten, hand_over_to
from system.harness import Daemon, message, route
from targets import Received, Target, answering
from until import until

pytestmark = pytest.mark.anyio

CHATS = 12
# Deliveries take some milliseconds: few are in flight in three crashes.
MOST_POISON = 5


class Load:
    """Updates of some chats, each sent until it is answered 202 and only then the next of its
    chat, to whichever daemon runs; at most 250 a second."""

    def __init__(self, daemons: list[Daemon], seed: int) -> None:
        self.accepted: list[int] = []
        self._daemons = daemons
        self._numbers = count(1)
        self._random = random.Random(seed)
        self._stop = asyncio.Event()

    async def run(self) -> None:
        await asyncio.gather(*(self._chat(n) for n in range(1, CHATS + 1)))

    def stop(self) -> None:
        self._stop.set()

    async def _chat(self, chat: int) -> None:
        while not self._stop.is_set():
            n = next(self._numbers)
            await hand_over_to(lambda: self._random.choice(self._daemons), message(n, chat=chat))
            self.accepted.append(n)
            await asyncio.sleep(CHATS / 250)


async def flaky(request: Received, writer: asyncio.StreamWriter) -> bool:
    """Answers most at once, every seventh first with 500, every fifth after a moment."""
    if request.update_id % 7 == 0 and request.attempt == 1:
        return await answering(500)(request, writer)
    if request.update_id % 5 == 0:
        await asyncio.sleep(0.02)
    return await answering()(request, writer)


async def kill_at_random(daemon: Daemon, times: int, seed: int) -> None:
    """kill -9 so many times: mostly at work, sometimes while the process starts."""
    chance = random.Random(seed)
    for turn in range(times):
        if turn % 8 == 7:
            await daemon.spawn()
            await asyncio.sleep(chance.uniform(0, 1))
            await daemon.kill()
        await (daemon.start() if not daemon.running else daemon.ready())
        await asyncio.sleep(chance.uniform(0.05, 0.4))
        await daemon.kill()
    await daemon.start()


def first_deliveries(target: Target) -> dict[int, list[int]]:
    """The ids of each chat in the order of their first POST."""
    seen: dict[int, list[int]] = {}
    for request in target.received:
        ids = seen.setdefault(request.update["message"]["chat"]["id"], [])
        if request.update_id not in ids:
            ids.append(request.update_id)
    return seen


async def replay_poison(daemon: Daemon) -> set[int]:
    """What was leased in three crashes is a dead letter, and rightly so: a person replays it. It
    need not have been sent three times: a process can die between the lease and the POST."""
    replayed = set()
    store = daemon.open_store()
    try:
        async for page in store.dead_letters.pages():
            for letter in page:
                assert letter.reason == "poison"
                key = KEYS.job(letter.id)
                assert int(await command(daemon.store_url, "HGET", key, "crashes")) == 3
                await store.dead_letters.replay(letter.id, letter.route, ordered=True)
                replayed.add(letter.update_id)
    finally:
        await store.close()
    return replayed


async def everything_arrives(daemon: Daemon, load: Load, targets: list[Target], url: str) -> None:
    """All that was answered 202 is delivered to each target, in the order of its chat but for what
    a person replayed; nothing is stuck."""
    wanted = set(load.accepted)
    await daemon.ready()
    replayed = await replay_poison(daemon)
    assert len(replayed) <= MOST_POISON
    for target in targets:
        missing = lambda t=target: not wanted - set(t.ids)  # noqa: E731
        await until(missing, 60, "every update")
    await forgotten(url, 60)
    for target in targets:
        for ids in first_deliveries(target).values():
            in_order = [n for n in ids if n not in replayed]
            assert in_order == sorted(in_order)
    # A crash burns no attempt: only what was in flight in one is sent twice as the same attempt.
    attempts = [
        (r.header("X-Webhook-Route"), r.update_id, r.attempt) for t in targets for r in t.received
    ]
    assert max(Counter(attempts).values()) > 1


async def answers(store_url: str) -> bool:
    """Whether the server there is up; one that was killed is away until the daemon sees it."""
    async with redis.asyncio.Redis.from_url(store_url) as client:
        try:
            return bool(await client.ping())
        except redis.RedisError:
            return False


ROUTE: dict[str, Any] = {
    "timeout": "1s",
    "max_attempts": 100,
    "backoff": {"first": "100ms", "factor": 1, "max": "1s"},
    # Poisoned lanes are no sign that the target is away.
    "breaker": {"failures": 1000, "cooldown": "100ms", "max_cooldown": "100ms"},
}


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_two_hundred_kills(short_path: Path, start_server: StartServer) -> None:
    """200 random kill -9 under load, of two instances on one store: every update is delivered,
    in the order of its chat, and none is stuck."""
    server = start_server("redis", "--appendonly", "yes", "--appendfsync", "no")
    async with AsyncExitStack() as stack:
        targets = [await stack.enter_async_context(Target(flaky)) for _ in range(2)]
        routes = [route(f"r{n}", target, **ROUTE) for n, target in enumerate(targets)]
        daemons = []
        for name in ("a", "b"):
            path = short_path / name
            path.mkdir()
            daemon = Daemon(path, routes, store_url=server.url, instance=name)
            daemons.append(await stack.enter_async_context(daemon))
        load = Load(daemons, seed=7)
        sending = asyncio.create_task(load.run())
        await asyncio.gather(*(kill_at_random(daemon, 89, n) for n, daemon in enumerate(daemons)))
        load.stop()
        await sending
        assert len(load.accepted) > 1000
        await everything_arrives(daemons[0], load, targets, server.url)


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_kills_of_a_daemon_with_the_embedded_store(short_path: Path) -> None:
    """kill -9 of the daemon, or of its store's server, at random: every update is delivered."""
    async with (
        Target(flaky) as target,
        Daemon(short_path, [route("shop", target, **ROUTE)]) as daemon,
    ):
        load = Load([daemon], seed=8)
        sending = asyncio.create_task(load.run())
        for turn in range(6):
            await kill_at_random(daemon, 2, turn)
            await asyncio.sleep(0.2)
            os.kill(int((short_path / "state" / "valkey.pid").read_text()), signal.SIGKILL)
        load.stop()
        await sending
        await until(lambda: answers(daemon.store_url), 20, "the next server")
        await everything_arrives(daemon, load, [target], daemon.store_url)
