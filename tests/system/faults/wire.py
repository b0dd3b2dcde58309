"""A wire to a store or a target that can be slow, lose packets, or be cut."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

CHUNK = 64 * 1024


@dataclass(eq=False)
class Direction:
    """What goes one way. `flows`: packets arrive; `lost`: what was sent since they do not, kept
    as TCP keeps it, which sends it again until it arrives; `delay` in seconds for each chunk."""

    flows: asyncio.Event = field(default_factory=asyncio.Event)
    lost: bytearray = field(default_factory=bytearray)
    delay: float = 0.0

    def __post_init__(self) -> None:
        self.flows.set()

    def stop(self) -> None:
        self.flows.clear()

    def go_on(self) -> None:
        self.lost.clear()
        self.flows.set()


@dataclass(eq=False)
class Wire:
    """Listens on a port of its own and leads to `to`, a unix socket or a port of this machine.

    `requests` go to the server, `answers` come back. A connection that is opened while requests
    do not flow is made once they do.
    """

    to: Path | int
    port: int = 0
    requests: Direction = field(default_factory=Direction)
    answers: Direction = field(default_factory=Direction)
    _trap: tuple[bytes, Callable[[], None]] | None = None
    _server: asyncio.Server | None = None
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _writers: set[asyncio.StreamWriter] = field(default_factory=set)

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
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
        self.cut()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    @property
    def store_url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def target_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/telegram/updates"

    def drop(self) -> None:
        """Lose all packets from now on, of new connections too."""
        self.requests.stop()
        self.answers.stop()

    def heal(self) -> None:
        """Let everything through again, and what was sent in the meantime."""
        self.requests.go_on()
        self.answers.go_on()

    def on(self, mark: bytes, then: Callable[[], None]) -> None:
        """Do something right before the first request that holds the mark would go on."""
        self._trap = mark, then

    def cut(self) -> None:
        """Break all connections; what was under way is gone."""
        for writer in self._writers:
            writer.transport.abort()

    def _spring(self, chunk: bytes) -> None:
        if self._trap is not None and self._trap[0] in chunk:
            then = self._trap[1]
            self._trap = None
            then()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._writers.add(writer)
        try:
            await self.requests.flows.wait()
            await self._connect(reader, writer)
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            writer.transport.abort()
            self._writers.discard(writer)
            self._tasks.discard(task)

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await (
            asyncio.open_connection("127.0.0.1", self.to)
            if isinstance(self.to, int)
            else asyncio.open_unix_connection(self.to)
        )
        self._writers.add(far_writer)
        there = asyncio.create_task(_pump(reader, far_writer, self.requests, self._spring))
        back = asyncio.create_task(_pump(far_reader, writer, self.answers, lambda _: None))
        try:
            await asyncio.wait((there, back), return_when=asyncio.FIRST_COMPLETED)
            # What the far end still says to a caller that is done asking is of no use to anybody.
        finally:
            for pump in (there, back):
                pump.cancel()
            await asyncio.gather(there, back, return_exceptions=True)
            self._writers.discard(far_writer)
            far_writer.transport.abort()


async def _pump(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    way: Direction,
    look: Callable[[bytes], None],
) -> None:
    while chunk := await reader.read(CHUNK):
        look(chunk)
        if way.delay:
            await asyncio.sleep(way.delay)
        if not way.flows.is_set():
            way.lost += chunk
            await way.flows.wait()
        writer.write(chunk)
        await writer.drain()
    await way.flows.wait()
