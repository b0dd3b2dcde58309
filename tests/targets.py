"""Services behind twr: bare socket servers that record each request and behave as they are told."""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from until import until


@dataclass(frozen=True, slots=True)
class Received:
    """One request: headers as they came, in their order; `at` in monotonic seconds."""

    method: str
    path: str
    headers: tuple[tuple[str, str], ...]
    body: bytes
    connection: int
    at: float

    def header(self, name: str) -> str | None:
        """The value of a header, None where it is not there or not there once."""
        found = [value for key, value in self.headers if key.lower() == name.lower()]
        return found[0] if len(found) == 1 else None

    @property
    def update(self) -> dict[str, Any]:
        value = json.loads(self.body)
        assert isinstance(value, dict)
        return value

    @property
    def update_id(self) -> int:
        return int(self.header("X-Telegram-Update-Id") or -1)

    @property
    def attempt(self) -> int:
        return int(self.header("X-Webhook-Attempt") or -1)


# Writes the answer; the connection is kept when it returns True.
Behaviour = Callable[[Received, asyncio.StreamWriter], Awaitable[bool]]


def reply(status: int = 200, body: bytes = b"", reason: str = "Said", **headers: str) -> bytes:
    """A whole HTTP answer; header names are written with _ for -."""
    lines = [f"HTTP/1.1 {status} {reason}", f"Content-Length: {len(body)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + body


def answering(status: int = 200, body: bytes = b"", **headers: str) -> Behaviour:
    """Answers at once."""
    return saying(reply(status, body, **headers))


def saying(data: bytes, *, keep: bool = True) -> Behaviour:
    """Sends these bytes."""

    async def behave(_: Received, writer: asyncio.StreamWriter) -> bool:
        writer.write(data)
        await writer.drain()
        return keep

    return behave


def late(seconds: float, status: int = 200) -> Behaviour:
    """Answers after some seconds."""

    async def behave(_: Received, writer: asyncio.StreamWriter) -> bool:
        await asyncio.sleep(seconds)
        writer.write(reply(status))
        return True

    return behave


def held(gate: asyncio.Event, status: int = 200) -> Behaviour:
    """Answers once the gate is open."""

    async def behave(_: Received, writer: asyncio.StreamWriter) -> bool:
        await gate.wait()
        writer.write(reply(status))
        return True

    return behave


def hanging() -> Behaviour:
    """Never answers."""
    return held(asyncio.Event())


async def cutting(_: Received, writer: asyncio.StreamWriter) -> bool:
    """Closes the connection without an answer."""
    return False


def endless(chunk: bytes, pause: float = 0.0, status: int = 200) -> Behaviour:
    """Begins an answer that goes on for ever, a chunk after each pause."""

    async def behave(_: Received, writer: asyncio.StreamWriter) -> bool:
        writer.write(b"HTTP/1.1 %d Said\r\nContent-Length: 1000000000000\r\n\r\n" % status)
        while True:
            writer.write(chunk)
            await writer.drain()
            await asyncio.sleep(pause)

    return behave


def by_turns(*behaviours: Behaviour) -> Behaviour:
    """A behaviour for each request in turn, the last one for all that follow."""
    rest = list(behaviours)

    async def behave(request: Received, writer: asyncio.StreamWriter) -> bool:
        return await (rest.pop(0) if len(rest) > 1 else rest[0])(request, writer)

    return behave


@dataclass(eq=False)
class Target:
    """A service on a port of its own; `behaviour` may be changed at any time."""

    behaviour: Behaviour = field(default_factory=answering)
    received: list[Received] = field(default_factory=list)
    connections: int = 0
    port: int = 0
    most_at_once: int = 0
    _at_once: int = 0
    _server: asyncio.Server | None = None
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _writers: set[asyncio.StreamWriter] = field(default_factory=set)

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def open(self) -> None:
        """Listen; on the same port as before when it was closed."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Stop listening and drop all connections: from now on they are refused."""
        if self._server is None:
            return
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()
        self._server = None

    def drop_connections(self) -> None:
        """Close the connections that are open, as a server does that tires of idle ones."""
        for writer in self._writers:
            writer.close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/telegram/updates"

    @property
    def open_connections(self) -> int:
        return len(self._writers)

    @property
    def ids(self) -> list[int]:
        """The update ids received, in order."""
        return [request.update_id for request in self.received]

    async def has(self, count: int, within: float = 10.0) -> list[Received]:
        """All requests, once there are at least so many."""
        await until(lambda: len(self.received) >= count, within, f"{count} requests")
        return self.received

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._writers.add(writer)
        self.connections += 1
        number = self.connections
        try:
            while await self._exchange(reader, writer, number):
                pass
        except (asyncio.IncompleteReadError, OSError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            self._writers.discard(writer)
            writer.close()

    async def _exchange(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int
    ) -> bool:
        request = await _read(reader, number)
        self.received.append(request)
        self._at_once += 1
        self.most_at_once = max(self.most_at_once, self._at_once)
        try:
            return await self.behaviour(request, writer)
        finally:
            self._at_once -= 1


async def _read(reader: asyncio.StreamReader, number: int) -> Received:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = head[:-4].split("\r\n")
    method, path, _ = first.split(" ")
    headers = tuple((name, value.strip()) for name, _, value in (x.partition(":") for x in lines))
    length = next((int(v) for name, v in headers if name.lower() == "content-length"), 0)
    body = await reader.readexactly(length)
    return Received(method, path, headers, body, number, time.monotonic())
