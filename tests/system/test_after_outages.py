"""After an outage of the store those that were cut off come first: nobody takes what they hold."""

import asyncio
import signal
from pathlib import Path

import pytest

from servers import Server
from system.harness import Daemon, message, route
from targets import Target, held

pytestmark = pytest.mark.anyio


def two(short_path: Path) -> list[Path]:
    """A directory for each of two daemons."""
    paths = [short_path / "a", short_path / "b"]
    for path in paths:
        path.mkdir()
    return paths


async def test_a_process_that_could_not_beat_is_not_taken_for_dead(
    short_path: Path, own_server: Server
) -> None:
    """A newer one of its name starts during an outage longer than a heartbeat may be missing: what
    the older has in flight is delivered once, also when it needs a moment to come back."""
    first, second = two(short_path)
    gate = asyncio.Event()
    async with Target(held(gate)) as target:
        shop = [route("shop", target, timeout="1m")]
        async with Daemon(first, shop, store_url=own_server.url) as older:
            await older.accepts(message(1))
            await target.has(1)
            own_server.kill()
            newer = Daemon(second, shop, store_url=own_server.url)
            newer.settings["instance"] = older.settings["instance"]
            await newer.spawn()
            try:
                await newer.says("store unavailable")
                await asyncio.sleep(6.0)  # the outage
                older.signal(signal.SIGSTOP)
                own_server.start()
                await newer.says("store back")
                await asyncio.sleep(2.0)  # time in which a second POST would come
                older.signal(signal.SIGCONT)
                await older.says("replaced by a newer process")
                gate.set()
                assert await older.ended() == 76
            finally:
                await newer.kill()
    assert target.ids == [1]
    assert not newer.logged("leases recovered")


async def test_a_settle_that_waited_for_the_store_comes_before_the_sweep(
    short_path: Path, own_server: Server
) -> None:
    """An outage outlasted the lease of what was answered meanwhile: no other instance takes it,
    also when its holder needs a moment longer to come back."""
    first, second = two(short_path)
    gate = asyncio.Event()
    async with Target(held(gate)) as target:
        shop = [route("shop", target, timeout="1s")]
        async with (
            Daemon(first, shop, store_url=own_server.url, instance="a") as a,
            Daemon(second, shop, store_url=own_server.url, instance="b") as b,
        ):
            await a.accepts(message(1))
            await target.has(1)
            own_server.kill()
            gate.set()
            await b.says("store unavailable")
            await asyncio.sleep(12.0)  # the outage, longer than a lease
            a.signal(signal.SIGSTOP)
            own_server.start()
            await b.says("store back")
            await asyncio.sleep(1.5)  # time in which a sweep would come
            a.signal(signal.SIGCONT)
            await b.comes("shop", waiting=0)
            assert not b.logged("leases expired")
    assert target.ids == [1]
