"""A webhook as a bare socket server: it records each byte and answers what it is told to."""

import asyncio
import json
import ssl
import subprocess
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class Seen:
    """One request: its head and body as they came, the number of its connection, and when."""

    head: bytes
    body: bytes
    connection: int
    at: float

    @property
    def update(self) -> dict[str, Any]:
        """The update in the body."""
        value = json.loads(self.body)
        assert isinstance(value, dict)
        return value

    @property
    def update_id(self) -> int:
        """The id of the update in the body."""
        return int(self.update["update_id"])


def reply(status: int = 200, reason: str = "OK", body: bytes = b"", **headers: str) -> bytes:
    """An HTTP answer; header names are written with _ for -."""
    lines = [f"HTTP/1.1 {status} {reason}", f"Content-Length: {len(body)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + body


Answer = Callable[[Seen], Awaitable[bytes | None]]


@dataclass(eq=False)
class Hook:
    """The server. `answer` is bytes, or a function of the request that gives them.

    None or b"" closes the connection without an answer.
    """

    answer: bytes | Answer = field(default_factory=reply)
    tls: ssl.SSLContext | None = None
    seen: list[Seen] = field(default_factory=list)
    opened: list[float] = field(default_factory=list)
    closed: list[int] = field(default_factory=list)
    port: int = 0
    open: int = 0
    peak: int = 0
    _held: int = 0
    _server: asyncio.Server | None = None
    _changed: asyncio.Event = field(default_factory=asyncio.Event)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self.tls)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    @property
    def url(self) -> str:
        """A webhook URL that leads here."""
        return f"http{'s' if self.tls else ''}://127.0.0.1:{self.port}/hook"

    @property
    def ids(self) -> list[int]:
        """The update ids that came, in order."""
        return [seen.update_id for seen in self.seen]

    async def until(self, condition: Callable[[], bool], timeout: float = 10.0) -> None:
        """Wait until `condition` holds; it is looked at after each request and each close."""
        async with asyncio.timeout(timeout):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        number = len(self.opened)
        self.opened.append(time.monotonic())
        self.open += 1
        try:
            while await self._exchange(reader, writer, number):
                pass
        except (asyncio.IncompleteReadError, OSError, asyncio.CancelledError):
            pass
        finally:
            writer.transport.abort()
            self.open -= 1
            self.closed.append(number)
            self._changed.set()
            self._tasks.discard(task)

    async def _exchange(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int
    ) -> bool:
        head = await reader.readuntil(b"\r\n\r\n")
        seen = Seen(head, await reader.readexactly(_length(head)), number, time.monotonic())
        self.seen.append(seen)
        self._held += 1
        self.peak = max(self.peak, self._held)
        self._changed.set()
        try:
            answer = self.answer if isinstance(self.answer, bytes) else await self.answer(seen)
        finally:
            self._held -= 1
        if not answer:
            return False
        writer.write(answer)
        await writer.drain()
        return True


def _length(head: bytes) -> int:
    lines = head.decode("latin-1").lower().split("\r\n")
    return next((int(line[15:]) for line in lines if line.startswith("content-length:")), 0)


def certificate(directory: Path, name: str) -> tuple[ssl.SSLContext, str]:
    """A server's TLS context with a fresh self-signed certificate for `name`, and its PEM."""
    key, pem = directory / "key.pem", directory / "cert.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    command += ["-nodes", "-days", "2", "-subj", f"/CN={name}", "-keyout", str(key)]
    command += ["-addext", f"subjectAltName=DNS:{name}", "-out", str(pem)]
    subprocess.run(command, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem, key)
    return context, pem.read_text()
