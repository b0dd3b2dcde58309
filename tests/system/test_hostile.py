"""Callers that mean harm: nothing they send costs memory, order, or the time of the others."""

import asyncio
import contextlib
import json
import random
import resource
import time
from pathlib import Path

import h11
import pytest

from system.callers import MIB, Authentic, Caller, connections, descriptors, memory
from system.harness import SECRET, SECRET_HEADER, Daemon, message, route
from system.wire import HEAD, first_status, said, whole
from targets import Target
from twr.core.update import InvalidUpdate, parse
from twr.edges.http import MAX_HEADER_BYTES
from until import until

pytestmark = pytest.mark.anyio

# Seconds that each caller of garbage lets pass: forty of them bring some 300 requests a second.
BETWEEN = 0.1


# --- many, slow and silent ones -----------------------------------------------------------------


async def test_two_thousand_idle_connections(short_path: Path) -> None:
    """They cost some KB each, which the next two thousand use again, and nobody waits for them."""
    async with Target() as target, Daemon(short_path, [route("shop", target)]) as daemon:
        authentic = Authentic(daemon)
        await authentic.alone()
        before, open_before = memory(daemon.pid), descriptors(daemon.pid)
        after: list[int] = []
        for _ in range(8):
            async with connections(daemon.port, 2000):
                await until(lambda: descriptors(daemon.pid) > open_before + 1990, 10, "all")
                async with authentic.traffic():
                    pass
            authentic.is_quick()
            await until(lambda: descriptors(daemon.pid) < open_before + 20, 10, "all closed")
            after.append(memory(daemon.pid))
        assert max(after) - before < 40 * MIB
        assert after[-1] - after[3] < 2 * MIB
        assert len(said(daemon)) < 30


async def test_three_hundred_half_heads(short_path: Path) -> None:
    """Heads that go on byte by byte and never end: the others get their answers, and the memory
    that they take is bounded."""
    async with Target() as target, Daemon(short_path, [route("shop", target)]) as daemon:
        authentic = Authentic(daemon)
        await authentic.alone()
        before, open_before = memory(daemon.pid), descriptors(daemon.pid)
        async with connections(daemon.port, 300, HEAD[:-20]) as callers:
            await until(lambda: descriptors(daemon.pid) > open_before + 290, 10, "all")
            async with authentic.traffic():
                while not authentic.enough:
                    for caller in callers:
                        caller.writer.write(b"x")
                    await asyncio.sleep(0.1)
            assert memory(daemon.pid) - before < 10 * MIB
            assert not any(caller.reader.at_eof() for caller in callers)
        authentic.is_quick()
        await until(lambda: descriptors(daemon.pid) < open_before + 20, 10, "all closed")
        await daemon.accepts(message(1))
        await daemon.comes("shop", waiting=0)


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
        await authentic.alone()
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


Answer = tuple[int, bytes]


async def test_garbage_from_many_callers(short_path: Path) -> None:
    """Damaged requests, of many callers: each gets the one answer that it has to, and there is no
    line in the log, no memory, no delay for it."""
    async with Target() as target, Daemon(short_path, [route("shop", target)]) as daemon:
        authentic = Authentic(daemon)
        await authentic.alone()
        before, lines = memory(daemon.pid), len(said(daemon))
        dice = random.Random(5)
        answers: list[tuple[bytes, Answer]] = []

        async def call() -> None:
            for _ in range(25):
                data = damaged(dice)
                answers.append((data, first_answer(await daemon.raw(data))))
                await asyncio.sleep(BETWEEN)

        async with authentic.traffic():
            await asyncio.gather(*(call() for _ in range(40)))
        for data, found in answers:
            assert found in wanted(data), data
        seen = {found for _, found in answers}
        assert len(seen) > 5
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


QUEUED: Answer = (202, b'{"status":"queued","deliveries":1}')
DUPLICATE: Answer = (202, b'{"status":"duplicate","deliveries":0}')


def refusal(status: int, word: str) -> Answer:
    return status, b'{"status":"%b"}' % word.encode()


def first_answer(data: bytes) -> Answer:
    """Status and body of the first answer."""
    head, _, rest = data.partition(b"\r\n\r\n")
    length = head.lower().partition(b"content-length:")[2].split()
    return first_status(head), rest[: int(length[0])] if length else rest


def wanted(data: bytes) -> list[Answer]:
    """What may be answered to these bytes and the end of what is sent: 400 without a word by the
    server itself to what is no HTTP, else by the order of our checks. To a body that is not whole
    both may come, whichever is told first."""
    server = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEADER_BYTES)
    server.receive_data(data)
    server.receive_data(b"")
    try:
        request = server.next_event()
    except h11.RemoteProtocolError as error:
        return [(error.error_status_hint, b"")]
    assert isinstance(request, h11.Request)
    refused = refusal_of(request)
    try:
        body = rest_of(server)
    except h11.RemoteProtocolError as error:
        own = (error.error_status_hint, b"")
        return [own] if refused is None else [refused, own]
    return [refused] if refused is not None else judged(body)


def refusal_of(request: h11.Request) -> Answer | None:
    """What is refused by its head."""
    names = [name for name, _ in request.headers]
    secrets = [value for name, value in request.headers if name == SECRET_HEADER.lower().encode()]
    if request.http_version not in (b"1.0", b"1.1"):
        return refusal(505, "http_version_not_supported")
    if b"content-length" in names and b"transfer-encoding" in names:
        return refusal(400, "invalid")
    if request.target != b"/hook":
        return refusal(404, "not_found")
    if request.method.upper() != b"POST":
        return refusal(405, "method_not_allowed")
    if secrets != [SECRET.encode()]:
        return refusal(401, "unauthorized")
    length = next((int(v) for name, v in request.headers if name == b"content-length"), 0)
    return refusal(413, "too_large") if length > MIB else None


def rest_of(server: h11.Connection) -> bytes:
    body = b""
    while isinstance(event := server.next_event(), h11.Data):
        body += event.data
    return body


def judged(body: bytes) -> list[Answer]:
    try:
        parse(body)
    except InvalidUpdate:
        return [refusal(400, "invalid")]
    return [QUEUED, DUPLICATE]


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
            taken, most_open = 1, 0
            for update_id in range(2, 22):
                with contextlib.suppress(OSError, json.JSONDecodeError):
                    status, _ = await daemon.post(message(update_id, chat=update_id))
                    taken += status == 202
                most_open = max(most_open, descriptors(daemon.pid))
                await asyncio.sleep(0.1)
            assert most_open >= few - 2
            assert len(said(daemon)) < 20
        resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, (soft, hard))
        await daemon.accepts(message(100))
        await daemon.comes("shop", within=30, waiting=0, dead=0)
        assert len(set(target.ids)) == taken + 1
        assert "Traceback" not in daemon.log()
