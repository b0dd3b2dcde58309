"""Large amounts: of updates, of retries due at once, of dead letters."""

import asyncio
import json
import os
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from servers import Server
from system.faults.conftest import StartServer
from system.faults.tools import (
    command,
    complaints,
    forgotten,
    hand_over_all,
    most_lines_a_second,
    resident,
)
from system.harness import ROOT, SECRET, SECRET_HEADER, Daemon, as_telegram_writes, message, route
from targets import Target, answering
from twr.core.jobs import Arrival, Claim, Destination, Settle
from until import until

pytestmark = pytest.mark.anyio

MIB = 1024 * 1024
NO_DISK = ("--appendonly", "no")


class Counting(asyncio.Protocol):
    """A target that only counts, and costs little: each read is one request. `place` is the count
    at the update `watched`."""

    count = 0
    watched = b"-"
    place = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._rest = b""

    def data_received(self, data: bytes) -> None:
        self._rest += data
        head, mark, body = self._rest.partition(b"\r\n\r\n")
        if not mark or len(body) < int(head.lower().partition(b"content-length:")[2].split()[0]):
            return
        self._rest = b""
        Counting.count += 1
        if Counting.watched in body:
            Counting.place = Counting.count
        self._transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")


@asynccontextmanager
async def counting() -> AsyncIterator[str]:
    """The URL of such a target."""
    Counting.count = 0
    server = await asyncio.get_running_loop().create_server(Counting, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    finally:
        server.close()


async def pour(daemon: Daemon, first: int, last: int, *, connections: int = 32) -> None:
    """Hand over updates of many chats on a few connections, each one after another."""
    numbers = iter(range(first, last))

    async def work() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", daemon.port)
        for n in numbers:
            body = as_telegram_writes(message(n, chat=n % 5000 + 1))
            head = f"POST /hook HTTP/1.1\r\nHost: x\r\n{SECRET_HEADER}: {SECRET}\r\n"
            writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            answer = await reader.readuntil(b"}")
            assert answer.startswith(b"HTTP/1.1 202"), answer
        writer.close()

    async with asyncio.TaskGroup() as tasks:
        for _ in range(connections):
            tasks.create_task(work())


async def used_memory(url: str) -> int:
    """The memory that the data of a store takes."""
    return int((await command(url, "INFO", "memory"))["used_memory"])


def size_of(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_two_hundred_thousand_updates(short_path: Path) -> None:
    """After 200,000 updates the memory of the store and of the process is what it was, and the
    store's file does not grow without end."""
    async with counting() as url, Daemon(short_path, [route("shop", url)]) as daemon:

        async def delivered(count: int) -> None:
            await until(lambda: Counting.count == count, 60, f"{count} deliveries")
            await forgotten(daemon.store_url, 30)

        await pour(daemon, 0, 10_000)
        await delivered(10_000)
        store, process = await used_memory(daemon.store_url), resident(daemon.pid)
        await pour(daemon, 10_000, 200_000)
        await delivered(200_000)
        # The bits by which 200,000 ids are known again take 25 KiB.
        assert await used_memory(daemon.store_url) - store < MIB
        assert resident(daemon.pid) - process < 16 * MIB
        assert size_of(short_path / "state") < 200 * MIB
        assert complaints(daemon.log()) == []
        assert len(daemon.log().splitlines()) < 20


async def store_jobs(
    daemon: Daemon, count: int, *, delay: float | None = None, expires: int = 86_400
) -> None:
    """Put jobs of the route `shop` into the store, of a chat each; delayed by so many seconds
    from the end of this when `delay` is given."""
    store = daemon.open_store()
    to = (Destination("shop", True, 1_000_000),)
    ends = time.monotonic() + (delay or 0)
    for start in range(0, count, 500):
        arrivals = [
            Arrival(n, "message", str(n), expires, as_telegram_writes(message(n, chat=n)), to)
            for n in range(start, min(start + 500, count))
        ]
        await store.accept(arrivals)
        if delay is None:
            continue
        (claimed,) = (await store.turn([], [Claim("shop", 500, 60)])).claimed
        assert len(claimed.jobs) == len(arrivals)
        left = str(max(1, int((ends - time.monotonic()) * 1000)))
        settles = [Settle("retry", job.id, job.token, left) for job in claimed.jobs]
        assert all((await store.turn(settles, [])).settled)
    await store.close()


async def slow_scripts(url: str) -> list[bytes]:
    """Scripts that took more than the time the log of slow commands was set to, with arguments."""
    # Only as one word it is a command whose answer the client reads as entries.
    entries = await command(url, "SLOWLOG GET", -1)
    return [e["command"] for e in entries if e["command"].upper().startswith(b"EVAL")]


async def watch_scripts(url: str, most: float = 0.05) -> None:
    """Log commands that take more than so many seconds."""
    await command(url, "CONFIG", "SET", "slowlog-log-slower-than", int(most * 1_000_000))
    await command(url, "CONFIG", "SET", "slowlog-max-len", 1000)
    await command(url, "SLOWLOG", "RESET")


async def test_slow_scripts_are_found(server: Server) -> None:
    """Where every command counts as slow, the scripts among them are named, and nothing else."""
    await watch_scripts(server.url, 0)
    await command(server.url, "PING")
    await command(server.url, "EVAL", "return 1", 0)
    sha = await command(server.url, "SCRIPT", "LOAD", "return 2")
    await command(server.url, "EVALSHA", sha, 0)
    assert await slow_scripts(server.url) == [b"EVALSHA %b 0" % sha, b"EVAL return 1 0"]


@pytest.mark.slow
@pytest.mark.timeout(400)
async def test_a_hundred_thousand_retries_due_at_once(
    short_path: Path, start_server: StartServer
) -> None:
    """No error, no script over 50 ms, and an update that comes in the middle has most of them
    behind it."""
    server = start_server("redis", *NO_DISK)
    async with counting() as target:
        shop = route("shop", target, max_pending=1_000_000)
        daemon = Daemon(short_path, [shop], store_url=server.url)
        await store_jobs(daemon, 100_000, delay=25)
        await watch_scripts(server.url)
        async with daemon:
            row = await daemon.route("shop")
            assert row["waiting"] > 90_000
            await until(lambda: Counting.count > 5000, 60, "the first of them")
            Counting.watched = b'"update_id":500000,'
            await daemon.accepts(message(500_000, chat=500_000))
            await until(lambda: Counting.count == 100_001, 300, "all deliveries")
            await forgotten(server.url, 30)
            assert 0 < Counting.place < 50_000
            assert complaints(daemon.log()) == []
            assert await daemon.metric("twr_store_errors_total") == 0
    assert await slow_scripts(server.url) == []


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_a_backlog_that_expires_at_once(short_path: Path, start_server: StartServer) -> None:
    """30,000 that expire together, some hours of a target's absence later: each becomes a dead
    letter within 10 s or so of its time, no script takes over 50 ms, and few lines are said."""
    server = start_server("redis", *NO_DISK)
    async with Target(answering(503)) as target:
        daemon = Daemon(short_path, [route("shop", target)], store_url=server.url)
        await store_jobs(daemon, 30_000, expires=25)
        await watch_scripts(server.url)
        async with daemon:
            await daemon.comes("shop", within=60, dead=30_000, waiting=0)
            assert most_lines_a_second(daemon.log()) < 100
            assert len(daemon.log().splitlines()) < 400
    assert await slow_scripts(server.url) == []


async def twr(daemon: Daemon, *arguments: str) -> tuple[int, str, str]:
    """A command of the command line: its exit code and what it said."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "twr", *arguments, "-c", str(daemon.file)),
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT / "daemon")} | daemon.environ,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_more_dead_letters_than_ten_thousand(
    short_path: Path, start_server: StartServer
) -> None:
    """10,050 dead letters are all listed and all replayed, each delivered once."""
    server = start_server("redis", *NO_DISK)
    refused = answering(400, b"no")
    async with (
        Target(refused) as target,
        Daemon(short_path, [route("shop", target)], store_url=server.url) as daemon,
    ):
        await hand_over_all(daemon, (message(n, chat=n) for n in range(10_050)))
        await daemon.comes("shop", within=60, dead=10_050, waiting=0)
        code, out, err = await twr(daemon, "dlq", "list", "--json")
        assert (code, err) == (0, "")
        letters = [json.loads(line) for line in out.splitlines()]
        assert {letter["update_id"] for letter in letters} == set(range(10_050))
        assert {(letter["reason"], letter["last_status"]) for letter in letters} == {
            ("permanent", 400)
        }
        target.received.clear()
        target.behaviour = answering()
        code, out, err = await twr(daemon, "dlq", "replay", "--all")
        assert (code, out) == (0, "replayed 10050 dead letters\n")
        await daemon.comes("shop", within=60, dead=0, waiting=0)
        await forgotten(server.url)
    assert sorted(target.ids) == list(range(10_050))
