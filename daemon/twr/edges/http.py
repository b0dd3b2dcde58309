"""Hypercorn, tamed: one socket, one application, ended by an event and by nothing else."""

import asyncio
import contextlib
import json
import logging
import os
import socket
from typing import Any

import anyio
from hypercorn.asyncio import run as hypercorn_run
from hypercorn.asyncio import serve as hypercorn_serve
from hypercorn.asyncio.tcp_server import TCPServer
from hypercorn.config import Config, Sockets
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
    handler has to bound its own time below `grace`.

    When it raises, `sock` is still open and can be served again.
    """
    halt = asyncio.Event()
    # Hypercorn cannot be cancelled: its task is its own, outside any cancel scope of ours.
    server = asyncio.create_task(
        hypercorn_serve(strict(app), _config(sock, keep_alive, grace), shutdown_trigger=halt.wait)
    )
    try:
        await _until(stop, server)
    finally:
        if stop.is_set():
            sock.close()
        halt.set()
        with anyio.CancelScope(shield=True):
            await _end(server, grace)
    if not stop.is_set():
        server.result()
        raise RuntimeError("the HTTP server ended by itself")


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
            await asyncio.shield(self._connection._initiate_server_close())


class _Connection(TCPServer):
    """Hypercorn's, but one that its client has closed ends at once: Hypercorn's own waits out the
    keep-alive, holding a descriptor for each client that opens a connection per request."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.idle_task = self._watch = _IdleWatch(self)  # type: ignore[assignment]

    async def _read_data(self) -> None:
        try:
            await super()._read_data()
        finally:
            self._watch.end()


hypercorn_run.TCPServer = _Connection  # type: ignore[attr-defined, assignment]


class _Config(Config):
    """Hypercorn's, but no child process inherits the listener: a store server that outlives a
    killed daemon would keep the address from the next one."""

    def create_sockets(self) -> Sockets:
        sockets = super().create_sockets()
        for sock in sockets.insecure_sockets:
            sock.set_inheritable(False)
        return sockets


def _config(sock: socket.socket, keep_alive: float, grace: float) -> Config:
    config = _Config()
    config.bind = [f"fd://{os.dup(sock.fileno())}"]
    config.backlog = BACKLOG
    # Unbounded: behind a bounded one a connection hangs for ever, answered, when its body comes in
    # more pieces than the application cared to read. What may wait is what one read brings.
    config.max_app_queue_size = 0
    config.keep_alive_timeout = keep_alive
    # After so many requests hypercorn closes the connection, in the middle of a pipeline too.
    config.keep_alive_max_requests = 2**63
    config.graceful_timeout = grace
    config.include_date_header = False
    config.include_server_header = False
    config.h11_max_incomplete_size = MAX_HEADER_BYTES
    config.accesslog = None
    config.errorlog = logging.getLogger("hypercorn.error")
    return config


async def _until(stop: anyio.Event, server: asyncio.Task[None]) -> None:
    waiter = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({server, waiter}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiter.cancel()


async def _end(server: asyncio.Task[None], grace: float) -> None:
    """Wait for the server's end; what outlasts `grace` is cut off, with one warning."""
    await asyncio.wait({server}, timeout=grace)
    if not server.done():
        log.warning("http connections cut off grace=%gs", grace)
        await asyncio.wait({server}, timeout=CUT_OFF)
    for _ in range(3):
        if not server.done():
            server.cancel()
            await asyncio.wait({server}, timeout=CUT_OFF)
    if server.done() and not server.cancelled():
        server.exception()


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
