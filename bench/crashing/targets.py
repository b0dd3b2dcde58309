"""The services behind the daemons: one server that knows all routes and writes down what it saw."""

import asyncio
import random
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from bench.crashing.record import Request, Span
from bench.crashing.updates import ERROR_AT, INVALID_AT, RULES, SIGNING
from twr import verify

_HEADERS = re.compile(r"^(x-[a-z-]+|content-length): *(\S+)", re.IGNORECASE | re.MULTILINE)
# How closely it is watched whether this process is held up, seconds.
TICK = 0.03
_CUT = b"HTTP/1.1 200 "
# The answers of a service that refuses an update for good.
REFUSED, INVALID = 500, 400

Answer = int | Literal["cut", "cut short", "hang"]


@dataclass(slots=True)
class Seen:
    """A request as it is under way."""

    update_id: int
    route: str
    process: int
    received: float
    ended: float | None = None
    status: int | None = None

    def end(self, status: int | None) -> None:
        self.ended, self.status = time.monotonic(), status


@dataclass(slots=True)
class Mood:
    """How the routes behave now. `calm`: nothing fails but what is refused for good. `hung`: when
    the hanging route did."""

    random: random.Random
    calm: bool = False
    hangs: bool = False
    hung: list[Span] = field(default_factory=list)

    def answer(self, route: str, update_id: int) -> tuple[float, Answer]:
        """How long a request takes, and how it ends."""
        if route == "flaky" and update_id % ERROR_AT == 0:
            return 0.0, REFUSED
        if route == "flaky" and update_id % INVALID_AT == 0:
            return 0.0, INVALID
        if self.calm:
            return 0.0, 200
        if route == "hanging" and self.hangs:
            return 0.0, "hang"
        delay = self.random.uniform(0.02, 0.5) if route == "slow" else 0.0
        return delay, self._flaky() if route == "flaky" else 200

    def _flaky(self) -> Answer:
        answers: Sequence[Answer] = (200, 500, 503, "cut", "cut short")
        return self.random.choices(answers, (75, 12, 4, 6, 3))[0]


@dataclass(slots=True)
class Targets:
    """`seen` in the order of arrival; `altered`: requests whose bytes or signature were not those
    of the update. `bodies` are asked for the update's bytes by its id."""

    mood: Mood
    bodies: Mapping[int, bytes]
    seen: list[Seen] = field(default_factory=list)
    altered: list[str] = field(default_factory=list)
    port: int = 0
    _server: asyncio.Server | None = None
    _open: set[asyncio.Task[None]] = field(default_factory=set)

    async def open(self) -> None:
        """Listen."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, backlog=512)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Drop all connections."""
        assert self._server is not None
        self._server.close()
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    def requests(self) -> list[Request]:
        """All that came so far."""
        return [
            Request(it.update_id, it.route, it.process, it.received, it.ended, it.status)
            for it in self.seen
        ]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        try:
            while await self._exchange(reader, writer):
                pass
        except (asyncio.IncompleteReadError, OSError, asyncio.CancelledError):
            pass
        finally:
            self._open.discard(task)
            writer.close()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        seen = await self._read(reader)
        self.seen.append(seen)
        delay, answer = self.mood.answer(seen.route, seen.update_id)
        patience = 30 * RULES.timeout if answer == "hang" else delay
        if await _left(reader, patience) or not isinstance(answer, int):
            seen.end(None)
            if answer == "cut short":
                writer.write(_CUT)
            return False
        seen.end(answer)
        retry = "Retry-After: 1\r\n" if answer == 503 else ""
        writer.write(f"HTTP/1.1 {answer} Said\r\n{retry}Content-Length: 0\r\n\r\n".encode())
        return True

    async def _read(self, reader: asyncio.StreamReader) -> Seen:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        path = head.split(" ", 2)[1]
        headers = {name.lower(): value for name, value in _HEADERS.findall(head)}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        _, route, process = path.split("/")
        update_id = int(headers.get("x-telegram-update-id", -1))
        if body != self.bodies.get(update_id) or not _signed(headers, body):
            self.altered.append(f"{update_id}/{route}")
        return Seen(update_id, route, int(process), time.monotonic())


def _signed(headers: Mapping[str, str], body: bytes) -> bool:
    stamp, signature = headers.get("x-webhook-timestamp"), headers.get("x-webhook-signature")
    return verify(SIGNING, body, stamp, signature)


async def _left(reader: asyncio.StreamReader, seconds: float) -> bool:
    """Whether the caller goes away within this time, or has gone already."""
    if seconds == 0.0:
        return reader.at_eof()
    try:
        async with asyncio.timeout(seconds):
            return not await reader.read(1)
    except ConnectionError:
        return True
    except TimeoutError:
        return False


async def watch_stalls(stalls: list[Span]) -> None:
    """Note when this process was held up, until it is cancelled: what came then was seen late."""
    before = time.monotonic()
    while True:
        await asyncio.sleep(TICK)
        now = time.monotonic()
        if now - before > 2 * TICK:
            stalls.append((before, now))
        before = now


async def change_mood(mood: Mood) -> None:
    """Now and then a route hangs for a while, until it is cancelled."""
    while True:
        await asyncio.sleep(mood.random.uniform(5.0, 20.0))
        began = time.monotonic()
        mood.hangs = True
        try:
            await asyncio.sleep(mood.random.uniform(2.0, 8.0))
        finally:
            mood.hangs = False
            mood.hung.append((began, time.monotonic()))
