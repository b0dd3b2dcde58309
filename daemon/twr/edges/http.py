"""Hypercorn's connections on a listener of our own, ended by an event and by nothing else."""

import asyncio
import contextlib
import json
import logging
import socket
from typing import Any

import anyio
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.asyncio.tcp_server import TCPServer
from hypercorn.asyncio.worker_context import WorkerContext
from hypercorn.config import Config
from hypercorn.typing import ASGIFramework, ASGIReceiveCallable, ASGISendCallable, Scope

log = logging.getLogger("twr.http")

# Telegram, and nginx in its default, close an idle connection after 60 s; whoever closes
# first on the server's side makes the other lose a request.
KEEP_ALIVE = 75.0
GRACE = 10.0
CUT_OFF = 0.5
BACKLOG = 1024
MAX_HEADER_BYTES = 32 * 1024


async def serve(
    app: ASGIFramework,
    sock: socket.socket,
    stop: anyio.Event,
    *,
    keep_alive: float = KEEP_ALIVE,
    grace: float = GRACE,
) -> None:
    """Serve `app` on the listening `sock` until `stop` is set, then drain.

    On `stop` the listener closes (`sock` with it), requests under way get `grace` seconds,
    idle connections end. `keep_alive` is how many seconds a connection may idle. Each
    handler has to bound its own time below `grace`. `app` is told of no lifespan.

    When it raises, `sock` is still open and can be served again.
    """
    connections = _Connections(strict(app), _config(keep_alive))
    # A copy, which no child process inherits: a store server that outlives a killed daemon would
    # keep the address from the next one.
    listener = await asyncio.start_server(connections.serve, sock=sock.dup(), backlog=BACKLOG)
    try:
        await stop.wait()
        sock.close()
    finally:
        listener.close()
        with anyio.CancelScope(shield=True):
            await connections.end(grace)


class _Connections:
    """All connections of one listener. Hypercorn's own server cannot be cancelled, and waits for
    ever for a peer that does not read."""

    def __init__(self, app: ASGIFramework, config: Config) -> None:
        self._app = ASGIWrapper(app)
        self._config = config
        self._context = WorkerContext(None)
        self._open: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection until it ends."""
        if self._context.terminated.is_set():
            # It was accepted as the listener closed, and nobody waits for its end.
            writer.transport.abort()
            return
        task = asyncio.current_task()
        assert task is not None
        self._open[task] = writer
        loop = asyncio.get_running_loop()
        connection = _Connection(self._app, loop, self._config, self._context, {}, reader, writer)
        try:
            await connection
        except (Exception, asyncio.CancelledError):
            # One that is cut off may fail besides, in the middle of its answer.
            if not task.cancelling():
                log.exception("http connection failed")
        finally:
            del self._open[task]
            connection.release()

    async def end(self, grace: float) -> None:
        """Wait for the end of all; what outlasts `grace` seconds is cut off, with one warning."""
        await self._context.terminated.set()
        if await self._ended(grace):
            return
        log.warning("http connections cut off grace=%gs", grace)
        for task, writer in self._open.items():
            writer.transport.abort()
            task.cancel()
        await self._ended(CUT_OFF)

    async def _ended(self, seconds: float) -> bool:
        if self._open:
            await asyncio.wait(list(self._open), timeout=seconds)
        return not self._open


class _IdleWatch:
    """In place of Hypercorn's idle task, which is made anew for each request: one task for a
    connection's life looks now and then whether it has been idle for too long."""

    def __init__(self, connection: TCPServer) -> None:
        self._connection = connection
        self._idle_since: float | None = None
        self._task: asyncio.Task[None] | None = None
        self._over = False

    async def restart(self, tasks: Any, _action: object) -> None:
        """The connection is idle from now on."""
        if self._over:
            return
        self._idle_since = self._connection.loop.time()
        if self._task is None:
            self._task = tasks._task_group.create_task(self._watch())
        elif self._connection.context.terminated.is_set():
            await self._connection._initiate_server_close()

    async def stop(self) -> None:
        """The connection is busy."""
        self._idle_since = None

    def end(self) -> None:
        """The connection is no more."""
        self._over = True
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def _watch(self) -> None:
        keep_alive = self._connection.config.keep_alive_timeout
        left = keep_alive
        while left > 0:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._connection.context.terminated.wait(), left)
                break
            idle = self._idle_since
            left = keep_alive - (self._connection.loop.time() - idle if idle is not None else 0)
        if self._idle_since is not None:
            await self._connection._initiate_server_close()


class _Connection(TCPServer):
    """Hypercorn's, but one that its client has closed ends at once: Hypercorn's own waits out the
    keep-alive, holding a descriptor for each client that opens a connection per request."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.idle_task = self._watch = _IdleWatch(self)  # type: ignore[assignment]

    def release(self) -> None:
        """Let go of all it has, once it has ended: else it stays, in cycles, until a collection,
        and very many can end between two."""
        error = self.reader.exception()
        if error is not None:
            error.__traceback__ = None
        vars(self).clear()

    async def _read_data(self) -> None:
        try:
            await super()._read_data()
        finally:
            self._watch.end()


def _config(keep_alive: float) -> Config:
    config = Config()
    # Unbounded: behind a bounded one a connection hangs for ever, answered, when its body comes in
    # more pieces than the application cared to read. What may wait is what one read brings.
    config.max_app_queue_size = 0
    config.keep_alive_timeout = keep_alive
    # After so many requests hypercorn closes the connection, in the middle of a pipeline too.
    config.keep_alive_max_requests = 2**63
    config.include_date_header = False
    config.include_server_header = False
    config.h11_max_incomplete_size = MAX_HEADER_BYTES
    config.accesslog = None
    config.errorlog = logging.getLogger("hypercorn.error")
    return config


def strict(app: ASGIFramework) -> ASGIFramework:
    """`app` behind a check of what it should never see.

    WebSockets are answered 405, HTTP/2 on a clear connection 505, and Content-Length
    together with Transfer-Encoding (request smuggling, RFC 9112 6.3) 400.
    """

    async def checked(scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        refused = _refusal(scope)
        if refused is None:
            await app(scope, receive, send)
        else:
            prefix = "websocket.http" if scope["type"] == "websocket" else "http"
            await _refuse(prefix, *refused, send)

    return checked


def _refusal(scope: Scope) -> tuple[int, str] | None:
    if scope["type"] == "websocket":
        return 405, "method_not_allowed"
    if scope["type"] == "http":
        if scope["http_version"] not in ("1.0", "1.1"):
            return 505, "http_version_not_supported"
        names = {name for name, _ in scope["headers"]}
        if b"transfer-encoding" in names and b"content-length" in names:
            return 400, "invalid"
    return None


async def _refuse(prefix: str, status: int, word: str, send: Any) -> None:
    body = json.dumps({"status": word}, separators=(",", ":")).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    if status == 400:
        headers.append((b"connection", b"close"))
    await send({"type": f"{prefix}.response.start", "status": status, "headers": headers})
    await send({"type": f"{prefix}.response.body", "body": body, "more_body": False})
