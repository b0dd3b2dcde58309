"""Callers that mean harm: nothing they send costs memory, order, or the time of the others."""

import asyncio
import contextlib
import json
import os
import random
import resource
import statistics
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from system.harness import SECRET, Daemon, message, route
from system.wire import HEAD, first_status, said, whole
from targets import Target
from until import until

pytestmark = pytest.mark.anyio

MIB = 2**20


# --- what a process uses ------------------------------------------------------------------------


def memory(pid: int, field: str = "VmRSS") -> int:
    """Its resident memory now, or with VmHWM the most since `forget_peak`; bytes."""
    text = Path(f"/proc/{pid}/status").read_text("ascii")
    return int(text.partition(f"{field}:")[2].split()[0]) * 1024


def forget_peak(pid: int) -> None:
    """Let VmHWM begin anew."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


# --- who calls ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Caller:
    """A connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter


@asynccontextmanager
async def connections(port: int, count: int, first: bytes = b"") -> AsyncIterator[list[Caller]]:
    """So many connections, on each of which something was sent."""
    opened: list[Caller] = []
    try:
        for _ in range(count):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            opened.append(Caller(reader, writer))
            writer.write(first)
        yield opened
    finally:
        for caller in opened:
            caller.writer.transport.abort()


class Authentic:
    """Sends one update after the other while it is entered, and notes how long each answer took."""

    def __init__(self, daemon: Daemon, first_id: int = 1_000_000) -> None:
        self.daemon = daemon
        self.next_id = first_id
        self.seconds: list[float] = []

    async def run(self) -> None:
        while True:
            started = time.monotonic()
            await self.daemon.accepts(message(self.next_id, chat=self.next_id))
            self.seconds.append(time.monotonic() - started)
            self.next_id += 1
            await asyncio.sleep(0.02)

    @asynccontextmanager
    async def traffic(self) -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(self.run())
            yield
            await until(lambda: len(self.seconds) >= 20, 10, "twenty answers")
            task.cancel()

    def is_quick(self) -> None:
        """Half of the answers took no noticeable time, none took long."""
        assert statistics.median(self.seconds) < 0.1
        assert max(self.seconds) < 1.0


# --- many, slow and silent ones -----------------------------------------------------------------


async def test_two_thousand_idle_connections(short_path: Path) -> None:
    """They cost some KB each, which the next two thousand use again, and nobody waits for them."""
    async with Target() as target, Daemon(short_path, [route("shop", target)]) as daemon:
        await daemon.accepts(message(1))
        before, open_before = memory(daemon.pid), descriptors(daemon.pid)
        authentic = Authentic(daemon)
        for round_ in range(6):
            async with connections(daemon.port, 2000):
                await until(lambda: descriptors(daemon.pid) > open_before + 1990, 10, "all")
                if round_ == 0:
                    async with authentic.traffic():
                        pass
            await until(lambda: descriptors(daemon.pid) < open_before + 20, 10, "all closed")
            # The first ones, and then what waits to be collected.
            assert memory(daemon.pid) - before < 65 * MIB
        authentic.is_quick()
        assert len(said(daemon)) < 30


@pytest.mark.parametrize(
    "begun",
    [b"", b"POST", HEAD[:-20], HEAD, HEAD + b"Content-Length: 1000\r\n\r\n{"],
    ids=["silence", "a word", "half a head", "no end of the head", "half a body"],
)
async def test_half_open_connections_end_with_their_callers(short_path: Path, begun: bytes) -> None:
    """Whatever they had begun: reset or closed, they leave no descriptor and no line behind."""
    async with Target() as target, Daemon(short_path, [route("shop", target)]) as daemon:
        await daemon.accepts(message(1))
        await daemon.comes("shop", delivered=1)
        before, lines = descriptors(daemon.pid), len(said(daemon))
        async with connections(daemon.port, 100, begun) as callers:
            await until(lambda: descriptors(daemon.pid) > before + 90, 10, "all accepted")
            for caller in callers[:50]:
                caller.writer.close()
        await until(lambda: descriptors(daemon.pid) <= before, 10, "all gone")
        assert len(said(daemon)) == lines


async def test_slow_senders_are_told_so(short_path: Path) -> None:
    """A body that trickles is 408 after 10 s, whoever else calls is answered at once."""
    async with Target() as target, Daemon(short_path, [route("shop", target)]) as daemon:
        authentic = Authentic(daemon)
        head = HEAD + b"Content-Length: 100000\r\n\r\n"
        async with connections(daemon.port, 100, head) as callers, authentic.traffic():
            answers = await asyncio.gather(*(trickled(caller) for caller in callers))
        assert {answer for answer, _ in answers} == {(408, b'{"status":"timeout"}')}
        assert all(9.5 < seconds < 13.0 for _, seconds in answers)
        authentic.is_quick()


async def trickled(caller: Caller) -> tuple[tuple[int, bytes], float]:
    """The answer to a body of which a byte comes ten times a second, and after how long."""

    async def send() -> None:
        while True:
            caller.writer.write(b" ")
            await asyncio.sleep(0.1)

    started = time.monotonic()
    sending = asyncio.create_task(send())
    try:
        async with asyncio.timeout(20):
            head = await caller.reader.readuntil(b"\r\n\r\n")
            body = await caller.reader.readexactly(20)
    finally:
        sending.cancel()
    return (first_status(head), body), time.monotonic() - started


async def test_garbage_from_many_callers(short_path: Path) -> None:
    """Damaged requests, forty callers at a time: no line in the log, no memory, no delay."""
    async with Target() as target, Daemon(short_path, [route("shop", target)]) as daemon:
        await daemon.accepts(message(1))
        before, lines = memory(daemon.pid), len(said(daemon))
        dice = random.Random(5)
        authentic = Authentic(daemon)

        async def call() -> list[int]:
            return [first_status(await daemon.raw(damaged(dice))) for _ in range(25)]

        async with authentic.traffic():
            found = await asyncio.gather(*(call() for _ in range(40)))
        statuses = {status for each in found for status in each}
        assert statuses <= {0, 202, 400, 401, 404, 405, 413, 431, 501, 505}
        assert len(statuses) > 3
        authentic.is_quick()
        assert memory(daemon.pid) - before < 30 * MIB
        assert len(said(daemon)) == lines


def damaged(dice: random.Random) -> bytes:
    """A good request with some bytes changed, left out, doubled."""
    data = whole(b'{"update_id":%d,"message":{"chat":{"id":7}}}' % dice.randrange(100))
    for _ in range(dice.randrange(4)):
        at, length = dice.randrange(len(data)), dice.randrange(1, 9)
        instead = dice.choice([b"", dice.randbytes(length), data[at : at + length] * 2])
        data = data[:at] + instead + data[at + length :]
    return data


# --- large ones ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (HEAD, 413),
        (HEAD.replace(SECRET.encode(), b"wrong"), 401),
        (HEAD.replace(b"/hook", b"/other"), 404),
        (HEAD.replace(b"POST", b"PUT"), 405),
    ],
    ids=["with the secret", "without it", "another path", "another method"],
)
@pytest.mark.parametrize("chunked", [False, True], ids=["a length", "chunks"])
async def test_bodies_of_50_mb(short_path: Path, head: bytes, status: int, chunked: bool) -> None:
    """Eight at once, declared or chunked, are refused with a few MB of memory."""
    async with Target() as target, Daemon(short_path, [route("shop", target)]) as daemon:
        await daemon.accepts(message(1))
        forget_peak(daemon.pid)
        before = memory(daemon.pid)
        posts = (large(daemon.port, head, chunked=chunked) for _ in range(8))
        assert set(await asyncio.gather(*posts)) <= {status, 0}
        assert memory(daemon.pid, "VmHWM") - before < 30 * MIB
        await daemon.accepts(message(2))
        await daemon.comes("shop", delivered=2)
        assert "Traceback" not in daemon.log()


async def large(port: int, head: bytes, *, chunked: bool) -> int:
    """Send 50 MB, or as much of it as is taken; the status of the answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    piece = b"x" * 65536
    framing = b"Transfer-Encoding: chunked" if chunked else b"Content-Length: %d" % (50 * MIB)
    chunk = b"%x\r\n%b\r\n" % (len(piece), piece) if chunked else piece

    async def send() -> None:
        with contextlib.suppress(OSError):
            writer.write(head + framing + b"\r\n\r\n")
            for _ in range(50 * MIB // len(piece)):
                writer.write(chunk)
                await writer.drain()

    sending = asyncio.create_task(send())
    try:
        async with asyncio.timeout(20):
            return first_status(await reader.readline())
    except ConnectionError:
        # It was closed with bytes of ours unread, and the answer with it.
        return 0
    finally:
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
        writer.transport.abort()


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b'{"update_id":1,"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}", 400),
        (b'{"update_id":1,"a":' + b'{"a":' * 100_000 + b"1" + b"}" * 100_000 + b"}", 400),
        (b'{"update_id":1,"a":' + b"[" * 1_000_000, 400),
        (b'{"update_id":%s}' % (b"9" * 100_000), 400),
        (b'{"update_id":1e3}', 400),
        (b'{"update_id":9223372036854775808}', 400),
        (b'{"update_id":9223372036854775807,"message":{"chat":{"id":%s}}}' % (b"9" * 1000), 202),
        (b'{"update_id":2,"message":{"chat":{"id":1e999}}}', 202),
        (b'{"update_id":3,"message":{"date":%s}}' % (b"9" * 1_000_000), 202),
        (b'{"update_id":4,"message":{"date":-0.%se-9999}}' % (b"9" * 900_000), 202),
        (b'{"update_id":5' + b',"a":1' * 150_000 + b"}", 202),
        (b'{"update_id":6,"message":{"text":"' + b"\\ud800" * 150_000 + b'"}}', 202),
        (b'{"update_id":7,"message":{"text":"' + b"\xff" * 1_000_000 + b'"}}', 202),
        (b'{"update_id":8,"message":' + b"[" * 900 + b"]" * 900 + b"}", 202),
    ],
    ids=["deep lists", "deep objects", "open lists", "a long id", "a float", "too large an id",
         "a long chat id", "infinity", "a million digits", "a long fraction", "many duplicates",
         "surrogates", "no UTF-8", "900 levels"],
)  # fmt: skip
async def test_extreme_json(short_path: Path, body: bytes, status: int) -> None:
    """Answered at once, by what it is; what is taken is delivered as it was."""
    async with Target() as target, Daemon(short_path, [route("shop", target)]) as daemon:
        started = time.monotonic()
        answer, _ = await daemon.post(body)
        assert answer == status
        assert time.monotonic() - started < 2.0
        if status == 202:
            assert (await target.has(1))[0].body == body
        await daemon.accepts(message(100))
        assert "Traceback" not in daemon.log()


# --- without descriptors ------------------------------------------------------------------------


async def test_running_out_of_descriptors(short_path: Path) -> None:
    """The log stays short, nothing that was accepted is lost, and all goes on by itself."""
    async with Target() as target, Daemon(short_path, [route("shop", target)]) as daemon:
        await daemon.accepts(message(1))
        await daemon.comes("shop", delivered=1)
        soft, hard = resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE)
        few = descriptors(daemon.pid) + 20
        resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, (few, hard))
        async with connections(daemon.port, 300):
            taken = 1
            for update_id in range(2, 22):
                with contextlib.suppress(OSError, json.JSONDecodeError):
                    status, _ = await daemon.post(message(update_id, chat=update_id))
                    taken += status == 202
                await asyncio.sleep(0.1)
            assert len(said(daemon)) < 60
        resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, (soft, hard))
        await daemon.accepts(message(100))
        await daemon.comes("shop", within=30, waiting=0, dead=0)
        assert len(set(target.ids)) == taken + 1
        assert "Traceback" not in daemon.log()
