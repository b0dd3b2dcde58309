"""Stores without room: in memory, on the disk."""

import asyncio
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import pytest

from servers import SERVERS
from system.faults.conftest import StartServer
from system.faults.tools import answer, command, forgotten, hand_over_all, most_lines_a_second
from system.harness import Daemon, message, route
from targets import Target, held
from until import until

pytestmark = pytest.mark.anyio

ROUTE = {"concurrency": 4, "timeout": "60s", "max_pending": 1_000_000}


async def fill(daemon: Daemon, size: int) -> list[int]:
    """Hand over updates of 10 chats until one is answered 503; those that were answered 202."""
    accepted: list[int] = []
    for n in count(1):
        if await answer(daemon, message(n, chat=n % 10, text="x" * size)) != 202:
            return accepted
        accepted.append(n)
        assert n < 20_000
    raise AssertionError


@pytest.mark.parametrize("kind", ["embedded", *SERVERS])
async def test_a_store_without_memory(
    kind: str, short_path: Path, start_server: StartServer
) -> None:
    """Above its limit the ingress answers 503 while deliveries go on, and that makes room again."""
    url = None if kind == "embedded" else start_server(kind).url
    gate = asyncio.Event()
    async with (
        Target(held(gate)) as target,
        Daemon(short_path, [route("shop", target, **ROUTE)], store_url=url) as daemon,
    ):
        url = daemon.store_url
        for n in range(1, 201):
            await daemon.accepts(message(n, chat=n % 10, text="x" * 20_000))
        await target.has(4)
        info = await command(url, "INFO", "memory")
        await command(url, "CONFIG", "SET", "maxmemory", info["used_memory"] - 1_000_000)
        written = len(daemon.log())
        assert await answer(daemon, message(900)) == 503
        assert await answer(daemon, message(901, chat=901)) == 503
        assert (await daemon.readiness())[0] == 200
        gate.set()
        await daemon.comes("shop", delivered=200, waiting=0, failed_attempts=0)
        await daemon.accepts(message(900), message(901, chat=901))
        await daemon.comes("shop", delivered=202, waiting=0, dead=0)
        assert most_lines_a_second(daemon.log()[written:]) < 20
        await forgotten(url)
    assert sorted(target.ids) == [*range(1, 201), 900, 901]


async def test_a_store_that_is_full_of_something_else(
    short_path: Path, start_server: StartServer
) -> None:
    """Retries, dead letters, alerts and a restart need no new memory while nothing is accepted."""
    server = start_server()
    gate = asyncio.Event()
    quick = {"backoff": {"first": "50ms", "factor": 1, "max": "1s"}, "max_attempts": 3}
    async with (
        Target(held(gate, 500)) as target,
        Daemon(short_path, [route("shop", target, **quick)], store_url=server.url) as daemon,
    ):
        await daemon.accepts(*(message(n, chat=n) for n in range(20)))
        await target.has(20)
        await command(server.url, "CONFIG", "SET", "maxmemory", 1_000_000)
        assert await answer(daemon, message(900)) == 503
        gate.set()
        await daemon.comes("shop", dead=20, waiting=0, failed_attempts=60)
        await daemon.kill()
        await daemon.start()
        assert (await daemon.route("shop"))["dead"] == 20
        assert await answer(daemon, message(900)) == 503
        await command(server.url, "CONFIG", "SET", "maxmemory", 0)
        await daemon.accepts(message(900))


def as_root(*words: str) -> subprocess.CompletedProcess[bytes]:
    """Run a command of root's; without rights it fails, and asks nobody for a password."""
    sudo = () if os.geteuid() == 0 else ("sudo", "-n")
    try:
        return subprocess.run((*sudo, *words), check=False, capture_output=True)
    except FileNotFoundError as missing:
        return subprocess.CompletedProcess(words, 127, b"", str(missing).encode())


@contextmanager
def small_disk(directory: Path, size: str) -> Iterator[None]:
    """A file system of its own in the directory; where it should be possible to mount one (CI) a
    failure to do so is a failure."""
    directory.mkdir(exist_ok=True)
    options = f"size={size},mode=700,uid={os.geteuid()},gid={os.getegid()}"
    mounted = as_root("mount", "-t", "tmpfs", "-o", options, "tmpfs", str(directory))
    if mounted.returncode:
        refuse = pytest.fail if os.environ.get("CI") == "true" else pytest.skip
        refuse(f"no small disk can be mounted: {mounted.stderr.decode().strip()}")
    try:
        yield
    finally:
        as_root("umount", "--lazy", str(directory)).check_returncode()


def grow(directory: Path, size: str) -> None:
    as_root("mount", "-o", f"remount,size={size}", str(directory)).check_returncode()


async def full_disk(daemon: Daemon, target: Target, gate: asyncio.Event, disk: Path) -> None:
    """Fill the disk, stay so for 5 s, make room: nothing that was answered 202 is lost."""
    written = len(daemon.log())
    accepted = await fill(daemon, 100_000)
    assert len(accepted) >= 20
    ends = time.monotonic() + 5
    while time.monotonic() < ends:
        assert await answer(daemon, message(90_000, chat=90_000, text="x" * 100_000)) == 503
        await asyncio.sleep(0.25)
    assert daemon.running
    assert most_lines_a_second(daemon.log()[written:]) < 20
    grow(disk, "256m")
    gate.set()
    later = range(50_000, 50_100)
    await hand_over_all(daemon, (message(n, chat=n) for n in later))
    wanted = {*accepted, *later}
    await until(lambda: set(target.ids) >= wanted, 30, "all updates")
    await daemon.ready()
    await daemon.comes("shop", waiting=0, processing=0, dead=0)
    # The one that was answered 503 may have been stored all the same.
    assert len(target.ids) <= len(wanted) + 1
    await forgotten(daemon.store_url)


async def test_a_full_disk_under_the_embedded_store(short_path: Path) -> None:
    """The server ends at once and at each start; the ingress answers 503 until there is room."""
    gate = asyncio.Event()
    disk = short_path / "state"
    with small_disk(disk, "8m"):
        async with (
            Target(held(gate)) as target,
            Daemon(short_path, [route("shop", target, **ROUTE)]) as daemon,
        ):
            await full_disk(daemon, target, gate, disk)


async def test_a_full_disk_under_a_store_of_ones_own(
    short_path: Path, start_server: StartServer
) -> None:
    """A server that refuses all writes until it can append to its file again."""
    gate = asyncio.Event()
    disk = short_path / "disk"
    with small_disk(disk, "8m"):
        options = ("--appendonly", "yes", "--appendfsync", "everysec", "--dir", str(disk))
        server = start_server("redis", *options)
        async with (
            Target(held(gate)) as target,
            Daemon(short_path, [route("shop", target, **ROUTE)], store_url=server.url) as daemon,
        ):
            await full_disk(daemon, target, gate, disk)
        server.stop()
