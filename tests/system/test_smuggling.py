"""Requests in doubt: pipelined, smuggled, broken. No two readers may see different ones in them."""

import asyncio
from pathlib import Path
from zlib import crc32

import pytest

from system.harness import Daemon, as_telegram_writes, message, route
from system.wire import HEAD, first_status, said, whole
from targets import Target

pytestmark = pytest.mark.anyio


async def test_pipelined_requests_are_answered_in_order(short_path: Path) -> None:
    """Fifty in one write, refused ones among them."""
    async with Target() as target, Daemon(short_path, [route("shop", target)]) as daemon:
        bodies = [as_telegram_writes(message(n)) if n % 5 else b"{}" for n in range(50)]
        reader, writer = await asyncio.open_connection("127.0.0.1", daemon.port)
        writer.write(b"".join(whole(body) for body in bodies))
        statuses = []
        async with asyncio.timeout(15):
            for _ in bodies:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().split(b"content-length:")[1].split()[0])
                await reader.readexactly(length)
                statuses.append(first_status(head))
        writer.close()
        assert statuses == [202 if n % 5 else 400 for n in range(50)]
        await daemon.comes("shop", delivered=40)
        assert target.ids == [n for n in range(50) if n % 5]


def inner(update_id: int) -> bytes:
    """The request that is not to be found."""
    return whole(as_telegram_writes(message(update_id)))


CHUNKS = b"0\r\n\r\n"
UPGRADE = b"GET /hook HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\n"
KEY = b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"


@pytest.mark.parametrize(
    "framing",
    [
        b"Content-Length: 5\r\nTransfer-Encoding: chunked",
        b"Transfer-Encoding: chunked\r\nContent-Length: 5",
        b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
        b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity",
        b"Transfer-Encoding: chunked, identity",
        b"Transfer-Encoding: identity, chunked",
        b"Transfer-Encoding: gzip, chunked",
        b"Transfer-Encoding: xchunked",
        b"Transfer-Encoding: \x0bchunked",
        b"Transfer-Encoding: chunked\x00",
        b"Transfer-Encoding : chunked",
        b"Transfer-Encoding:\r\n chunked\r\nContent-Length: 5",
        b"Transfer-Encoding\r\n: chunked",
        b"Content-Length: 5\r\nContent-Length: 6",
        b"Content-Length: 5, 6",
        b"Content-Length: +5",
        b"Content-Length: -5",
        b"Content-Length: 5.0",
        b"Content-Length: 0x5",
        b"Content-Length: 5 5",
        b"Content-Length: \xb2",
        b"Content-Length: ",
        b"Content-Length : 5",
        b"Content-Length: 99999999999999999999999",
    ],
)
async def test_smuggled_requests_go_nowhere(shared: Daemon, framing: bytes) -> None:
    """Where the end of a body is in doubt, one refusal is all that comes back."""
    update_id = crc32(framing)
    answer = await shared.raw(HEAD + framing + b"\r\n\r\n" + CHUNKS + inner(update_id))
    assert first_status(answer) in (400, 413, 501)
    assert answer.count(b"HTTP/1.1 ") == 1
    await shared.accepts(message(update_id))


@pytest.mark.parametrize(
    "chunks",
    [b"zz\r\n{}\r\n", b"-2\r\n{}\r\n", b"0x2\r\n{}\r\n", b"2 2\r\n{}\r\n", b"2\r\n{}x\r\n",
     b"\r\n", b"2\n{}\n", b"2;" + b"x" * 100_000, b"0" * 100_000, b"f" * 30 + b"\r\n{}\r\n"],
)  # fmt: skip
async def test_broken_chunks_are_refused(shared: Daemon, chunks: bytes) -> None:
    """With one answer, or by the end of the connection; never taken."""
    update_id = crc32(chunks)
    head = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
    answer = await shared.raw(head + chunks + CHUNKS + inner(update_id))
    assert first_status(answer) in (0, 400, 413, 431)
    assert answer.count(b"HTTP/1.1 ") <= 1
    await shared.accepts(message(update_id))


@pytest.mark.parametrize(
    "head",
    [
        b"POST /hook\r\n\r\n",
        b"POST /hook HTTP/9.9\r\nHost: x\r\n\r\n",
        b"POST  /hook HTTP/1.1\r\nHost: x\r\n\r\n",
        b"POST /ho ok HTTP/1.1\r\nHost: x\r\n\r\n",
        b"POST /\xff HTTP/1.1\r\nHost: x\r\n\r\n",
        b"POST http://[::1/hook HTTP/1.1\r\nHost: x\r\n\r\n",
        b"CONNECT x:443 HTTP/1.1\r\nHost: x\r\n\r\n",
        b"POST /hook HTTP/1.1\r\n\r\n",
        b"POST /hook HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n",
        b"POST /hook HTTP/1.1\r\nHost: x\r\nno colon\r\n\r\n",
        b"POST /hook HTTP/1.1\r\nHost: x\r\n: empty\r\n\r\n",
        b"POST /hook HTTP/1.1\r\nHost: x\r\nA: \x00\r\n\r\n",
        b"POST /hook HTTP/1.1\r\nHost: x\r\nA: b\r\n\tfolded\r\n\r\n",
        b"POST /hook HTTP/1.1\r\nHost: x\r\n" + b"A: b\r\n" * 10_000 + b"\r\n",
        b"POST /hook HTTP/1.1\r\nHost: x\r\nA: " + b"b" * 100_000 + b"\r\n\r\n",
        b"POST /" + b"x" * 100_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
        UPGRADE + b"Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n" + KEY,
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 500,
        b"\r\n" * 1000,
        b"\x00" * 100_000,
    ],
)
async def test_odd_heads_are_refused(shared: Daemon, head: bytes) -> None:
    """By the server's own word or by ours, and in silence on our side."""
    lines = len(said(shared))
    answer = await shared.raw(head)
    assert first_status(answer) in (0, 400, 401, 404, 405, 431, 505)
    assert (await shared.post(b"{}"))[0] == 400
    assert len(said(shared)) == lines


async def test_an_upgrade_to_http2_leads_nowhere(shared: Daemon) -> None:
    """All that it is told, in HTTP/2, is that HTTP/2 is not spoken here."""
    reader, writer = await asyncio.open_connection("127.0.0.1", shared.port)
    writer.write(UPGRADE + b"Upgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n")
    try:
        async with asyncio.timeout(10):
            await reader.readuntil(b'{"status":"http_version_not_supported"}')
    finally:
        writer.transport.abort()
    assert (await shared.post(b"{}"))[0] == 400
