"""A store that is down, frozen, killed, full, emptied or damaged."""

import asyncio
import os
import signal
from pathlib import Path

import pytest
from redis.asyncio import Redis

from servers import Server
from system.harness import Daemon, message, route
from targets import Target, answering, by_turns, held
from until import until

pytestmark = pytest.mark.anyio

UNAVAILABLE = (503, {"status": "unavailable"})


async def back_again(daemon: Daemon, update_id: int, within: float = 15.0) -> None:
    """An update is stored, as Telegram's repetitions find out."""

    async def stored() -> bool:
        return (await daemon.post(message(update_id)))[0] == 202

    await until(stored, within, "an update that is stored")


async def test_a_stopped_store_is_answered_503_and_all_resumes(
    short_path: Path, own_server: Server
) -> None:
    """While it is away nothing is accepted; what was in flight settles once it is back."""
    gate = asyncio.Event()
    async with (
        Target(by_turns(held(gate), answering())) as target,
        Daemon(short_path, [route("shop", target)], store_url=own_server.url) as daemon,
    ):
        await daemon.accepts(message(1))
        await target.has(1)
        await asyncio.to_thread(own_server.stop)
        assert await daemon.post(message(2)) == UNAVAILABLE
        await until(lambda: _unready(daemon), what="a readiness that says so")
        gate.set()
        await daemon.says("store unavailable")
        assert await daemon.post(message(3)) == UNAVAILABLE
        await asyncio.to_thread(own_server.start)
        await back_again(daemon, 2)
        await daemon.ready()
        await daemon.comes("shop", waiting=0, delivered=2, dead=0)
        assert await daemon.metric("twr_stale_settles_total") == 0.0
        assert len(daemon.logged("Traceback")) == 0
    assert target.ids == [1, 2]


async def _unready(daemon: Daemon) -> bool:
    status, body = await daemon.readiness()
    return status == 503 and "store" in body["reasons"][0]


async def test_an_outage_does_not_flood_the_log(short_path: Path, own_server: Server) -> None:
    """Hundreds of refused updates make a handful of lines."""
    async with (
        Target() as target,
        Daemon(short_path, [route("shop", target)], store_url=own_server.url) as daemon,
    ):
        await asyncio.to_thread(own_server.stop)
        for n in range(300):
            assert await daemon.post(message(n)) == UNAVAILABLE
        assert len(daemon.log().splitlines()) < 40
        await asyncio.to_thread(own_server.start)
        await back_again(daemon, 1)


async def test_a_frozen_store_is_answered_503_in_time(short_path: Path, own_server: Server) -> None:
    """Within the 5 s that the contract names, and all goes on when it thaws."""
    async with (
        Target() as target,
        Daemon(short_path, [route("shop", target)], store_url=own_server.url) as daemon,
    ):
        assert own_server.process is not None
        own_server.process.send_signal(signal.SIGSTOP)
        loop = asyncio.get_running_loop()
        before = loop.time()
        assert await daemon.post(message(1)) == UNAVAILABLE
        assert loop.time() - before < 6
        own_server.process.send_signal(signal.SIGCONT)
        await back_again(daemon, 1)
        await daemon.comes("shop", delivered=1, waiting=0)
    assert target.ids == [1]


async def test_a_store_that_is_down_at_start_is_no_reason_not_to_start(
    short_path: Path, own_server: Server
) -> None:
    """Updates and readiness get 503, the log says why in a line, and all works once it is there."""
    async with (
        Target() as target,
        Daemon(short_path, [route("shop", target)], store_url=own_server.url) as daemon,
    ):
        await daemon.stop()
        await asyncio.to_thread(own_server.stop)
        await daemon.spawn()
        await until(lambda: len(daemon.logged("ready listen=")) == 2, 15, "a second start")
        assert await daemon.post(message(1)) == UNAVAILABLE
        assert (await daemon.status())["store"]["ok"] is False
        assert (await daemon.readiness())[0] == 503
        assert len(daemon.logged("store unavailable")) <= 2
        assert "Traceback" not in daemon.log()
        await asyncio.to_thread(own_server.start)
        await daemon.ready()
        await daemon.accepts(message(1))
        await daemon.comes("shop", delivered=1)


async def test_ignored_needs_no_store(short_path: Path, own_server: Server) -> None:
    """What no route takes is answered 202 with the store down."""
    async with Target() as target:
        only = [route("shop", target, match={"user_ids": [1]})]
        async with Daemon(short_path, only, store_url=own_server.url) as daemon:
            await asyncio.to_thread(own_server.stop)
            assert await daemon.post(message(1)) == (202, {"status": "ignored", "deliveries": 0})


async def test_a_killed_embedded_store_comes_back_by_itself(short_path: Path) -> None:
    """The ingress answers 503 meanwhile, and what was stored is delivered."""
    gate = asyncio.Event()
    async with (
        Target(by_turns(held(gate), answering())) as target,
        Daemon(short_path, [route("shop", target)]) as daemon,
    ):
        await daemon.accepts(message(1), message(2))
        await target.has(1)
        for update_id in range(10, 16):
            await kill_embedded(daemon)
            await back_again(daemon, update_id)
        gate.set()
        await daemon.comes("shop", delivered=8, waiting=0, dead=0)
        assert daemon.running
    assert sorted(target.ids) == [1, 2, *range(10, 16)]


async def kill_embedded(daemon: Daemon) -> None:
    """Kill the server and wait for the next one."""
    file = daemon.directory / "state" / "valkey.pid"
    killed = file.read_text()
    os.kill(int(killed), signal.SIGKILL)
    await until(lambda: file.read_text() not in ("", killed), 10, "another server")


async def test_a_store_that_lost_its_data_takes_new_updates(
    short_path: Path, own_server: Server
) -> None:
    """After FLUSHALL in mid-traffic new updates are delivered, and no process takes it for a
    rival's doing."""
    async with (
        Target() as target,
        Daemon(short_path, [route("shop", target)], store_url=own_server.url) as daemon,
        Redis.from_url(own_server.url) as redis,
    ):
        await daemon.accepts(message(1))
        await daemon.comes("shop", delivered=1)
        await redis.flushall()
        lines = len(daemon.log().splitlines())
        await daemon.accepts(message(2), message(3))
        await daemon.comes("shop", within=5, delivered=3)
        assert daemon.running
        assert len(daemon.log().splitlines()) - lines < 20


async def test_forgotten_scripts_are_no_error(short_path: Path, own_server: Server) -> None:
    """SCRIPT FLUSH between updates changes nothing."""
    async with (
        Target() as target,
        Daemon(short_path, [route("shop", target)], store_url=own_server.url) as daemon,
        Redis.from_url(own_server.url) as redis,
    ):
        for n in range(5):
            await redis.script_flush()
            await daemon.accepts(message(n))
        await daemon.comes("shop", delivered=5)
        assert daemon.logged("(?i)error") == []


async def test_a_full_store_refuses_and_drains(short_path: Path, own_server: Server) -> None:
    """The ingress answers 503 while deliveries and settles go on; it heals by itself."""
    gate = asyncio.Event()
    async with (
        Target(held(gate)) as target,
        Daemon(short_path, [route("shop", target)], store_url=own_server.url) as daemon,
        Redis.from_url(own_server.url) as redis,
    ):
        await daemon.accepts(*(message(n, chat=n) for n in range(20)))
        await target.has(20)
        await redis.config_set("maxmemory", "1")
        assert await daemon.post(message(100)) == UNAVAILABLE
        gate.set()
        await daemon.comes("shop", delivered=20, waiting=0)
        await redis.config_set("maxmemory", "0")
        await back_again(daemon, 100)
        await daemon.comes("shop", delivered=21)


@pytest.mark.parametrize("place", ["ready", "processing", "delayed", "all", "lane:7"])
async def test_a_damaged_key_of_one_route_leaves_the_others_alone(
    short_path: Path, own_server: Server, place: str
) -> None:
    """A key of the wrong type stops its own route at most, also across a restart: it is no outage,
    and told of without a flood."""
    async with Target() as target, Target() as other:
        routes = [
            route("shop", target, match={"update_types": ["callback_query"]}),
            route("other", other, match={"update_types": ["message"]}),
        ]
        async with (
            Daemon(short_path, routes, store_url=own_server.url) as daemon,
            Redis.from_url(own_server.url) as redis,
        ):
            await redis.set(f"{{twr:main}}:route:shop:{place}", "damaged")
            await daemon.accepts(message(1))
            await other.has(1)
            await daemon.stop()
            await daemon.spawn()
            await until(lambda: len(daemon.logged("ready listen=")) == 2, 15, "a second start")
            await back_again(daemon, 2)
            await other.has(2)
            await back_again(daemon, 3)
            await other.has(3)
            await daemon.ready()
            assert daemon.logged("store_down|task crashed") == []
            assert len(daemon.logged("store damaged")) <= 20


async def test_an_unfit_store_ends_the_process(short_path: Path, own_server: Server) -> None:
    """A server that may evict updates is an error of the configuration: 78, in one line."""
    async with Target() as target, Redis.from_url(own_server.url) as redis:
        await redis.config_set("maxmemory-policy", "allkeys-lru")
        daemon = Daemon(short_path, [route("shop", target)], store_url=own_server.url)
        await daemon.spawn()
        assert await daemon.ended() == 78
        assert daemon.log().splitlines()[-1] == (
            "the store may evict updates: set maxmemory-policy noeviction (it is allkeys-lru)"
        )
        assert "Traceback" not in daemon.log()
