"""Updates that kill the process, and those that are merely beside them."""

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from servers import Server
from system.faults.tools import KEYS, command, forgotten, in_order
from system.harness import Daemon, message, route
from targets import Received, Target, answering
from until import until

pytestmark = pytest.mark.anyio

BESIDE = range(11, 31)
BEHIND = 1000


class Deadly:
    """Kills the daemon: what is in flight beside these updates in the first two crashes is held
    until then, afterwards only they are."""

    def __init__(self, updates: range) -> None:
        self.updates = updates
        self.crashes = 0
        self.flying: set[int] = set()
        self._over = asyncio.Event()

    async def behave(self, request: Received, writer: asyncio.StreamWriter) -> bool:
        over = self._over
        self.flying.add(request.update_id)
        if self.crashes < 2 or request.update_id in self.updates:
            await over.wait()
        self.flying.discard(request.update_id)
        return await answering()(request, writer)

    async def reached(self) -> set[int]:
        """What is at its target once one of these updates is."""
        await until(lambda: self.flying & set(self.updates), 20, "a deadly one in flight")
        return self.flying

    async def crash(self, daemon: Daemon) -> None:
        await daemon.kill()
        self._over.set()
        await until(lambda: not self.flying, 10, "the end of what was in flight")
        self._over = asyncio.Event()
        self.crashes += 1
        await daemon.start()


async def letters(daemon: Daemon) -> dict[int, tuple[str, int]]:
    """Reason and attempts of each dead letter."""
    store = daemon.open_store()
    try:
        pages = [page async for page in store.dead_letters.pages()]
        return {letter.update_id: (letter.reason, letter.attempts) for p in pages for letter in p}
    finally:
        await store.close()


@pytest.mark.parametrize("deadly", [1, 2])
async def test_an_update_that_kills_the_process(
    deadly: int, short_path: Path, server: Server
) -> None:
    """The third time it is a dead letter, having been sent alone, and its chat goes on; those in
    flight beside it are delivered with no attempt counted. With two of the kind, both are."""
    scene = Deadly(range(1, deadly + 1))
    shop = {"timeout": "60s", "concurrency": 40, "max_attempts": 1}
    async with (
        Target(scene.behave) as target,
        Daemon(short_path, [route("shop", target, **shop)], store_url=server.url) as daemon,
    ):
        first = (*scene.updates, *BESIDE)
        await daemon.accepts(*(message(n, chat=n) for n in first))
        await daemon.accepts(*(message(BEHIND + n, chat=n) for n in first))
        for _ in range(2):
            await until(lambda: scene.flying == set(first), 20, "all in flight")
            await scene.crash(daemon)
            assert await letters(daemon) == {}
        dead: dict[int, tuple[str, int]] = {}
        while len(dead) < deadly:
            (n,) = await scene.reached()
            assert await letters(daemon) == dead
            await scene.crash(daemon)
            dead[n] = ("poison", 0)
            assert await letters(daemon) == dead
            assert int(await command(server.url, "HGET", KEYS.job(f"{n}/shop"), "crashes")) == 3
        await daemon.comes("shop", dead=deadly, waiting=0, processing=0, failed_attempts=0)
        assert await in_order(server.url) == []
        times = Counter(target.ids)
        assert times == dict.fromkeys(first, 3) | dict.fromkeys((BEHIND + n for n in first), 1)
        assert {request.attempt for request in target.received} == {1}
        store = daemon.open_store()
        assert await store.dead_letters.drop([f"{n}/shop" for n in scene.updates]) == deadly
        await store.close()
        await forgotten(server.url)
