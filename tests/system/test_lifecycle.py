"""Starts, ends and crashes of the process."""

import asyncio
import resource
import signal
from pathlib import Path

import pytest

from servers import Server
from system.harness import Daemon, message, route
from targets import Target, answering, by_turns, hanging, held, late
from until import until

pytestmark = pytest.mark.anyio


async def test_a_killed_daemon_delivers_after_its_restart(short_path: Path) -> None:
    """kill -9 in the middle of a POST, and one attempt allowed: delivered all the same."""
    async with (
        Target(by_turns(hanging(), answering())) as target,
        Daemon(short_path, [route("shop", target, max_attempts=1)]) as daemon,
    ):
        await daemon.accepts(message(1), message(2), message(3, chat=8))
        await target.has(2)
        await daemon.kill()
        await daemon.start()
        await daemon.comes("shop", waiting=0, dead=0, failed_attempts=0)
        assert daemon.logged('leases recovered jobs=\\d cause="process died"')
    assert set(target.ids) == {1, 2, 3}
    assert {request.attempt for request in target.received} == {1}


async def test_deliveries_in_flight_finish_on_sigterm(short_path: Path) -> None:
    """Ten that take a second all end; the exit code is 0, and none is delivered again."""
    async with (
        Target(late(1.0)) as target,
        Daemon(short_path, [route("shop", target)]) as daemon,
    ):
        await daemon.accepts(*(message(n, chat=n) for n in range(10)))
        await target.has(10)
        assert await daemon.stop() == 0
        assert daemon.logged("draining in_flight=10")
        target.behaviour = answering()
        await daemon.start()
        await daemon.comes("shop", waiting=0, delivered=0, dead=0)
    assert sorted(target.ids) == list(range(10))


async def test_what_outlasts_the_grace_goes_back_to_the_front(short_path: Path) -> None:
    """It is the next to be delivered after a restart, with no attempt counted."""
    async with (
        Target(hanging()) as target,
        Daemon(
            short_path,
            [route("shop", target, timeout="1m", max_attempts=1, concurrency=1, order="none")],
            shutdown_grace="300ms",
        ) as daemon,
    ):
        await daemon.accepts(message(1), message(2), message(3))
        await target.has(1)
        assert await daemon.stop() == 0
        target.behaviour = answering()
        await daemon.start()
        await daemon.comes("shop", waiting=0, delivered=3, dead=0)
        assert not daemon.logged("leases recovered")
    assert target.ids == [1, 1, 2, 3]
    assert {request.attempt for request in target.received} == {1}


async def test_updates_are_accepted_while_deliveries_drain(short_path: Path) -> None:
    """They wait in the store for the next start."""
    gate = asyncio.Event()
    async with (
        Target(held(gate)) as target,
        Daemon(short_path, [route("shop", target)]) as daemon,
    ):
        await daemon.accepts(message(1))
        await target.has(1)
        daemon.signal(signal.SIGTERM)
        await daemon.says("draining in_flight=1")
        status, body = await daemon.readiness()
        assert (status, body["reasons"]) == (503, ["the process is ending"])
        await daemon.accepts(message(2, chat=8))
        gate.set()
        assert await daemon.ended() == 0
        assert target.ids == [1]
        await daemon.start()
        await daemon.comes("shop", delivered=1, waiting=0)
    assert target.ids == [1, 2]


async def test_draining_needs_no_processor_time(short_path: Path) -> None:
    """While it waits for a delivery to end, the process sleeps."""
    async with (
        Target(late(2.5)) as target,
        Daemon(short_path, [route("shop", target)]) as daemon,
    ):
        await daemon.accepts(message(1))
        await target.has(1)
        daemon.signal(signal.SIGTERM)
        await daemon.says("draining")
        before = processor_ticks(daemon.pid)
        await daemon.ended()
        assert processor_ticks(daemon.pid, before) - before < 50


def processor_ticks(pid: int, default: int = 0) -> int:
    """Hundredths of a second that the process has used; `default` when it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return default
    return int(fields[11]) + int(fields[12])


async def test_a_second_daemon_on_the_same_directory_is_refused(short_path: Path) -> None:
    """It says so in one line and exits 69, and the first goes on."""
    async with Target() as target, Daemon(short_path, [route("shop", target)]) as daemon:
        other_path = short_path / "other"
        other_path.mkdir()
        other = Daemon(other_path, [route("shop", target)])
        other.settings["store"] = {"dir": str(short_path / "state")}
        await other.spawn()
        assert await other.ended() == 69
        expected = f"store.dir {short_path}/state is in use by another twr (pid {daemon.pid})"
        assert other.log().splitlines()[-1] == expected
        assert "Traceback" not in other.log()
        await daemon.accepts(message(1))
        await daemon.comes("shop", delivered=1)


async def test_a_shells_limit_of_descriptors_is_raised(short_path: Path) -> None:
    """Up to the hard limit: a thousand connections are nothing unusual."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    async with Target() as target:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(1024, hard), hard))
        try:
            async with Daemon(short_path, [route("shop", target)]) as daemon:
                found, _ = resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert found == (65_536 if hard == resource.RLIM_INFINITY else min(hard, 65_536))


@pytest.mark.parametrize("which", ["listen", "admin"])
async def test_a_taken_port_is_one_line(short_path: Path, which: str) -> None:
    """The daemon ends before it has started anything, and names the address."""
    async with Target() as target:
        daemon = Daemon(short_path, [route("shop", target)])
        daemon.settings[which] = f"127.0.0.1:{target.port}"
        await daemon.spawn()
        assert await daemon.ended() == 1
        assert daemon.log().splitlines()[-1] == (
            f"cannot listen on 127.0.0.1:{target.port}: in use by another process; "
            "stop it, or configure another address"
        )
        assert "Traceback" not in daemon.log()
        assert not (short_path / "state").exists()


async def test_a_server_left_over_is_replaced(short_path: Path) -> None:
    """A daemon killed with -9 leaves its store's server; the next one stops it and has its data."""
    async with Target(hanging()) as target, Daemon(short_path, [route("shop", target)]) as daemon:
        await daemon.accepts(message(1))
        await target.has(1)
        await daemon.kill()
        left = int((short_path / "state" / "valkey.pid").read_text())
        target.behaviour = answering()
        await daemon.start()
        await daemon.comes("shop", delivered=1)
        assert int((short_path / "state" / "valkey.pid").read_text()) != left
        assert not runs(left)


def runs(pid: int) -> bool:
    """Whether it lives; one that has ended and was not waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


async def test_a_newer_process_of_the_same_name_takes_over(
    short_path: Path, own_server: Server
) -> None:
    """The older says so and exits 76; what it had in flight is not delivered twice."""
    async with Target() as target:
        gate = asyncio.Event()
        target.behaviour = held(gate)
        paths = [short_path / "a", short_path / "b"]
        for path in paths:
            path.mkdir()
        shop = [route("shop", target)]
        async with (
            Daemon(paths[0], shop, store_url=own_server.url) as older,
            Daemon(paths[1], shop, store_url=own_server.url) as newer,
        ):
            await older.says("ending reason=")
            await newer.accepts(message(1))
            gate.set()
            assert await older.ended() == 76
            assert older.log().splitlines()[-1] == (
                "replaced by a newer process of the same instance name"
            )
            await newer.comes("shop", delivered=1)
    assert target.ids == [1]


async def test_two_instances_share_the_work(short_path: Path, own_server: Server) -> None:
    """Each delivers, chats keep their order, and the work of one that dies is taken over."""
    paths = [short_path / "a", short_path / "b"]
    for path in paths:
        path.mkdir()
    async with Target(late(0.05)) as target:
        shop = [route("shop", target, concurrency=2, timeout="1s")]
        async with (
            Daemon(paths[0], shop, store_url=own_server.url, instance="a") as a,
            Daemon(paths[1], shop, store_url=own_server.url, instance="b") as b,
        ):
            for n in range(40):
                await a.accepts(message(n, chat=n % 8))

            async def all_delivered() -> bool:
                done = [int((await each.route("shop"))["delivered"]) for each in (a, b)]
                return sum(done) == 40 and min(done) > 0

            await until(all_delivered, 10, "a share for each")
            for chat in range(8):
                ids = [n for n in target.ids if n % 8 == chat]
                assert ids == sorted(ids)
            target.behaviour = hanging()
            await a.accepts(message(100, chat=100))
            await target.has(41)
            await (a if (await a.route("shop"))["processing"] else b).kill()
            survivor = b if not a.running else a
            target.behaviour = answering()
            await survivor.comes("shop", within=20, waiting=0, processing=0)
    assert target.ids.count(100) == 2
