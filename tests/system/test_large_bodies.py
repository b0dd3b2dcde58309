"""Bodies that are large, deep, or long to read: they cost no memory and no time of the others."""

import asyncio
import contextlib
import time
from collections import Counter
from pathlib import Path

import pytest

from system.callers import MIB, Authentic, forget_peak, memory
from system.harness import SECRET, Daemon, message, route
from system.wire import HEAD, first_status
from targets import Target

pytestmark = pytest.mark.anyio

# Seconds between two times eight of them.
BETWEEN = 0.2
# Bad UTF-8 goes the tolerant path.
TOLERATED = b'{"update_id":9,"a":"\xff","b":%b}'
DECLARED = b"Content-Length: %d" % (50 * MIB)


@pytest.mark.parametrize(
    ("head", "status", "word"),
    [
        (HEAD, 413, "too_large"),
        (HEAD.replace(SECRET.encode(), b"wrong"), 401, "unauthorized"),
        (HEAD.replace(b"/hook", b"/other"), 404, "not_found"),
        (HEAD.replace(b"POST", b"PUT"), 405, "method_not_allowed"),
    ],
    ids=["with the secret", "without it", "another path", "another method"],
)
@pytest.mark.parametrize("chunked", [False, True], ids=["a length", "chunks"])
async def test_bodies_of_50_mb(
    short_path: Path, head: bytes, status: int, word: str, chunked: bool
) -> None:
    """Eight at once, declared or chunked, are refused with a few MB of memory, again and again, and
    the others do not wait for it. A declared length is refused before any of the body has come."""
    async with Target() as target, Daemon(short_path, [route("shop", target)]) as daemon:
        authentic = Authentic(daemon)
        await authentic.alone()
        forget_peak(daemon.pid)
        before = memory(daemon.pid)
        found: Counter[int] = Counter()

        async def eight() -> None:
            posts = (large(daemon.port, head, chunked=chunked) for _ in range(8))
            found.update(await asyncio.gather(*posts))

        async with authentic.traffic():
            while not authentic.enough:
                await eight()
                await asyncio.sleep(BETWEEN)
        assert memory(daemon.pid, "VmHWM") - before < 30 * MIB
        assert set(found) <= {status, 0}
        if not chunked:
            answer = await daemon.raw(head + DECLARED + b"\r\n\r\n", more_to_come=True)
            assert first_status(answer) == status
            assert answer.endswith(b'\r\n\r\n{"status":"%b"}' % word.encode())
        authentic.is_quick()
        await daemon.accepts(message(2))
        await daemon.comes("shop", waiting=0)
        assert 2 in target.ids
        assert "Traceback" not in daemon.log()


async def large(port: int, head: bytes, *, chunked: bool) -> int:
    """Send 50 MB, or as much of it as is taken; the status of the answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    piece = b"x" * 65536
    framing = b"Transfer-Encoding: chunked" if chunked else DECLARED
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
        (TOLERATED % (b"[" + b"[]," * 170_000 + b"[]]"), 202),
        (TOLERATED % (b"[" * 99 + b"[]," * 347_000 + b"[]" + b"]" * 99), 202),
        (TOLERATED % (b"[" * 980 + b"[]," * 347_000 + b"[]" + b"]" * 980), 202),
    ],
    ids=["deep lists", "deep objects", "open lists", "a long id", "a float", "too large an id",
         "a long chat id", "infinity", "a million digits", "a long fraction", "many duplicates",
         "surrogates", "no UTF-8", "900 levels", "many lists",
         "many lists a hundred levels deep", "many lists in the depth"],
)  # fmt: skip
async def test_extreme_json(short_path: Path, body: bytes, status: int) -> None:
    """Answered at once, by what it is, and again with no more memory, while others hardly wait;
    what is taken is delivered as it was."""
    async with Target() as target, Daemon(short_path, [route("shop", target)]) as daemon:
        authentic = Authentic(daemon)
        await authentic.alone()
        forget_peak(daemon.pid)
        assert (await daemon.post(body))[0] == status
        once = memory(daemon.pid, "VmHWM")
        async with authentic.traffic():
            while not authentic.enough:
                started = time.monotonic()
                assert (await daemon.post(body))[0] == status
                assert time.monotonic() - started < 2.0
                await asyncio.sleep(0.1)
        often = memory(daemon.pid, "VmHWM")
        assert often - once < 8 * MIB
        authentic.is_quick()
        if status == 202:
            await daemon.comes("shop", waiting=0)
            assert [request.body for request in target.received].count(body) == 1
        assert "Traceback" not in daemon.log()
