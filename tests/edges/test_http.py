"""The HTTP server helper over real sockets."""

import asyncio
import gc
import os
import resource
import socket
import struct
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import pytest
import uvloop

from twr.edges import http, sockets
from until import until

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    """Both event loops: the daemon's own, and the one of the standard library."""
    factory = uvloop.new_event_loop if request.param == "uvloop" else asyncio.new_event_loop
    return "asyncio", {"loop_factory": factory}


@dataclass(frozen=True)
class Listen:
    """An address as the configuration gives it."""

    host: str | None = "127.0.0.1"
    port: int | None = 0
    path: str | None = None


@dataclass
class App:
    """Answers with what it was asked, or waits in `/hold` until released."""

    entered: anyio.Event
    release: anyio.Event

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == "/hold":
            self.entered.set()
            await self.release.wait()
        body = b"x" * 200_000 if scope["path"] == "/large" else scope["path"].encode()
        headers = [(b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})


@dataclass(frozen=True)
class Server:
    """A server under test; `connect()` gives a new client stream."""

    app: App
    sock: socket.socket
    stop: anyio.Event
    task: asyncio.Task[None]
    connect: Callable[[], Any]


@asynccontextmanager
async def serving(listen: Listen | None = None, **options: float) -> AsyncIterator[Server]:
    """A running server, stopped at the end."""
    sock = sockets.bind(listen or Listen())
    address = sock.getsockname()
    app, stop = App(anyio.Event(), anyio.Event()), anyio.Event()
    task = asyncio.create_task(http.serve(app, sock, stop, **options))

    async def connect() -> anyio.abc.SocketStream:
        if isinstance(address, str):
            return await anyio.connect_unix(address)
        return await anyio.connect_tcp(*address[:2])

    try:
        with anyio.fail_after(20):
            yield Server(app, sock, stop, task, connect)
            stop.set()
            await asyncio.wait({task})
    finally:
        sock.close()


async def ask(stream: anyio.abc.SocketStream, path: str, extra: str = "") -> tuple[str, str]:
    """One request on a connection: the head and the body of the answer."""
    await stream.send(f"GET {path} HTTP/1.1\r\nHost: test\r\n{extra}\r\n".encode())
    return await answer(stream)


async def answer(stream: anyio.abc.SocketStream) -> tuple[str, str]:
    """The next answer on a connection."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += await stream.receive()
    head, body = data.split(b"\r\n\r\n", 1)
    length = int(head.lower().split(b"content-length:")[1].split()[0])
    while len(body) < length:
        body += await stream.receive()
    return head.decode(), body.decode()


async def test_an_answer_carries_no_word_of_the_server() -> None:
    """Neither a Date nor a Server header is added."""
    async with serving() as server, await server.connect() as stream:
        assert await ask(stream, "/a") == ("HTTP/1.1 200 \r\ncontent-length: 2", "/a")


async def test_a_unix_socket_is_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same helper serves unix sockets."""
    monkeypatch.chdir(tmp_path)
    async with serving(Listen(path="s")) as server, await server.connect() as stream:
        assert (await ask(stream, "/a"))[1] == "/a"


async def test_a_connection_is_kept_for_thousands_of_requests() -> None:
    """Hypercorn's own limit of 1,000 requests does not close it."""
    async with serving() as server, await server.connect() as stream:
        for _ in range(1100):
            head, _ = await ask(stream, "/a")
            assert "connection: close" not in head


async def test_stopping_lets_a_request_under_way_finish() -> None:
    """The answer of a slow handler arrives, new connections are refused meanwhile."""
    async with serving(grace=5) as server, await server.connect() as stream:
        await stream.send(b"GET /hold HTTP/1.1\r\nHost: test\r\n\r\n")
        await server.app.entered.wait()
        server.stop.set()
        with anyio.fail_after(5):
            while True:
                try:
                    await (await server.connect()).aclose()
                except OSError:
                    break
        server.app.release.set()
        assert (await answer(stream))[1] == "/hold"
        await asyncio.wait({server.task})
        assert server.task.exception() is None


async def test_stopping_ends_idle_connections_at_once() -> None:
    """An idle keep-alive connection does not hold up the end."""
    async with serving(keep_alive=60, grace=30) as server, await server.connect() as stream:
        await ask(stream, "/a")
        server.stop.set()
        with anyio.fail_after(3):
            await asyncio.wait({server.task})
        assert server.task.exception() is None


async def test_a_handler_that_outlives_the_grace_is_cut_off(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The end comes after the grace, with one warning and no exception."""
    async with serving(grace=0.2) as server, await server.connect() as stream:
        await stream.send(b"GET /hold HTTP/1.1\r\nHost: test\r\n\r\n")
        await server.app.entered.wait()
        server.stop.set()
        with anyio.fail_after(5):
            await asyncio.wait({server.task})
        assert server.task.exception() is None
        ours = [record.getMessage() for record in caplog.records if record.name == "twr.http"]
        assert ours == ["http connections cut off grace=0.2s"]


async def test_a_connection_that_comes_as_the_listener_closes_ends_at_once() -> None:
    """Whoever called sends again, elsewhere or to the next process; nothing is left of it."""
    app = App(anyio.Event(), anyio.Event())
    connections = http._Connections(app, http._config(60))
    await connections.end(1)
    async with (
        await asyncio.start_server(connections.serve, "127.0.0.1", 0) as listener,
        await anyio.connect_tcp(*listener.sockets[0].getsockname()) as stream,
    ):
        with pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):
            await ask(stream, "/hold")
    assert not app.entered.is_set()


async def test_what_fails_because_it_is_cut_off_is_no_error(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An answer that is broken off in the middle fails in its own way; the one warning says it."""
    entered = anyio.Event()

    async def run(connection: http._Connection) -> None:
        entered.set()
        try:
            await anyio.sleep_forever()
        finally:
            raise RuntimeError("in the middle of an answer")

    monkeypatch.setattr(http._Connection, "run", run)
    async with serving(grace=0.05) as server, await server.connect():
        await entered.wait()
        server.stop.set()
        await asyncio.wait({server.task})
    assert [record.getMessage() for record in caplog.records] == [
        "http connections cut off grace=0.05s"
    ]


async def test_a_peer_that_never_reads_does_not_hold_up_the_end() -> None:
    """Answers that nobody takes are dropped after the grace."""
    async with serving(grace=0.2) as server, await server.connect() as stream:
        with anyio.move_on_after(0.5):
            await stream.send(b"GET /large HTTP/1.1\r\nHost: test\r\n\r\n" * 100)
        server.stop.set()
        with anyio.fail_after(8):
            await asyncio.wait({server.task})
        assert server.task.exception() is None


async def test_cancelling_ends_the_server_and_leaves_the_socket() -> None:
    """A cancelled task ends as cancelled, and its socket can be served again."""
    async with serving(grace=1) as server:
        async with await server.connect() as stream:
            await ask(stream, "/a")
        server.task.cancel()
        await asyncio.wait({server.task})
        assert server.task.cancelled()
        again = asyncio.create_task(http.serve(server.app, server.sock, server.stop))
        async with await server.connect() as stream:
            assert (await ask(stream, "/b"))[1] == "/b"
        server.stop.set()
        await again


async def test_no_signal_handler_is_installed() -> None:
    """The handlers of the process are as they were."""
    import signal

    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    async with serving() as server, await server.connect() as stream:
        await ask(stream, "/a")
        after = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    assert after == before


WEBSOCKET = (
    "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
)


@pytest.mark.parametrize(
    ("extra", "status", "body"),
    [
        ("Content-Length: 2\r\nTransfer-Encoding: chunked\r\n", "400", '{"status":"invalid"}'),
        (WEBSOCKET, "405", '{"status":"method_not_allowed"}'),
    ],
)
async def test_what_no_application_should_see_is_refused(
    extra: str, status: str, body: str
) -> None:
    """Ambiguous lengths and WebSockets are answered as JSON before the application."""
    async with serving() as server, await server.connect() as stream:
        head, text = await ask(stream, "/a", extra)
        assert (head.split()[1], text) == (status, body)


async def test_http2_on_a_clear_connection_is_refused() -> None:
    """A client with prior knowledge of HTTP/2 gets a 505 and not the application's answer."""
    from h2.connection import H2Connection
    from h2.events import ResponseReceived, StreamEnded

    client = H2Connection()
    client.initiate_connection()
    names = (":method", "GET"), (":path", "/a"), (":scheme", "http"), (":authority", "test")
    client.send_headers(1, list(names), end_stream=True)
    seen: list[Any] = []
    async with serving() as server, await server.connect() as stream:
        await stream.send(client.data_to_send())
        while not any(isinstance(event, StreamEnded) for event in seen):
            seen += client.receive_data(await stream.receive())
    answers = [event.headers[0] for event in seen if isinstance(event, ResponseReceived)]
    assert answers == [(b":status", b"505")]


@asynccontextmanager
async def no_more_descriptors(server: Server) -> AsyncIterator[None]:
    """What the block opens is soon closed again."""
    async with await server.connect() as stream:
        assert (await ask(stream, "/warm"))[1] == "/warm"
        before = len(os.listdir("/proc/self/fd"))
        yield
        await until(lambda: len(os.listdir("/proc/self/fd")) <= before, 5, "closed connections")


async def test_a_connection_that_its_client_closes_ends_at_once() -> None:
    """Long before the keep-alive is over it holds no descriptor any more."""
    async with serving(keep_alive=60) as server, no_more_descriptors(server):
        for _ in range(20):
            async with await server.connect() as stream:
                assert (await ask(stream, "/a"))[1] == "/a"


async def test_a_body_that_nobody_reads_leaves_nothing_behind() -> None:
    """In however many pieces it came, the answer ends its connection."""
    head = b"POST /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    async with serving(keep_alive=60) as server, no_more_descriptors(server):
        for _ in range(5):
            async with await server.connect() as stream:
                await stream.send(head + b"1\r\nx\r\n" * 5000 + b"0\r\n\r\n")
                assert (await stream.receive()).startswith(b"HTTP/1.1 200 ")


def reset(stream: anyio.abc.SocketStream) -> None:
    """Close it with a reset."""
    raw = stream.extra(anyio.abc.SocketAttribute.raw_socket)
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


@pytest.mark.parametrize("ending", ["closed", "answered", "reset", "half sent", "idle"])
async def test_a_connection_that_has_ended_waits_for_no_collection(ending: str) -> None:
    """Its memory is free again at once: very many can end between two collections."""

    def left() -> int:
        return sum(type(it) is http._Connection for it in gc.get_objects())

    gc.collect()
    gc.disable()
    try:
        async with serving(keep_alive=0.05 if ending == "idle" else 60) as server:
            async with await server.connect() as stream:
                if ending in ("answered", "reset", "idle"):
                    await ask(stream, "/a")
                if ending == "half sent":
                    await stream.send(b"POST / HTTP/1.1\r\nHost")
                if ending == "idle":
                    with pytest.raises(anyio.EndOfStream):
                        await stream.receive()
                if ending == "reset":
                    reset(stream)
            await until(lambda: left() == 0, 5, "nothing left")
    finally:
        gc.enable()


FLOOD = """
import socket, sys
kept = []
for _ in range(300):
    kept.append(socket.create_connection(("127.0.0.1", int(sys.argv[1])), timeout=5))
print("connected", flush=True)
sys.stdin.read()
"""


async def test_a_child_process_does_not_hold_the_address() -> None:
    """A child that outlives the server keeps nobody from listening there again."""
    async with serving() as server:
        address = server.sock.getsockname()
        stream = await server.connect()
        assert (await ask(stream, "/"))[1] == "/"
        await stream.aclose()
        child = await asyncio.create_subprocess_exec("sleep", "60")
    try:
        sockets.bind(Listen(port=address[1])).close()
    finally:
        child.kill()
        await child.wait()


async def test_running_out_of_descriptors_is_survived() -> None:
    """After 300 connections on 50 free descriptors the server answers as before."""
    # The loop of the standard library reports each accept that failed; uvloop none.
    asyncio.get_running_loop().set_exception_handler(lambda _, context: None)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    async with serving() as server:
        port = server.sock.getsockname()[1]
        flood = await anyio.open_process(
            [sys.executable, "-c", FLOOD, str(port)], stderr=subprocess.DEVNULL
        )
        assert flood.stdout is not None
        assert flood.stdin is not None
        async with flood:
            resource.setrlimit(
                resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 50, hard)
            )
            try:
                assert await flood.stdout.receive() == b"connected\n"
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            await flood.stdin.aclose()
            await flood.wait()
        async with await server.connect() as stream:
            assert (await ask(stream, "/a"))[1] == "/a"
