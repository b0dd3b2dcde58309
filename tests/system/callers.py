"""Many callers at once, the authentic one beside them, and what they cost the daemon."""

import asyncio
import os
import statistics
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from system.harness import Daemon, message
from until import until

MIB = 2**20

# What authentic traffic may lose beside others, against the same traffic alone right before.
MEDIAN_FACTOR, MEDIAN_MORE = 2.0, 0.005
P99_MORE = 0.1
ENOUGH = 200
PAUSE = 0.003


def memory(pid: int, field: str = "VmRSS") -> int:
    """The resident memory of a process, or with VmHWM the most since `forget_peak`; bytes."""
    text = Path(f"/proc/{pid}/status").read_text("ascii")
    return int(text.partition(f"{field}:")[2].split()[0]) * 1024


def forget_peak(pid: int) -> None:
    """Let VmHWM begin anew."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


@dataclass(frozen=True)
class Caller:
    """A connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter


@asynccontextmanager
async def connections(port: int, count: int, first: bytes = b"") -> AsyncIterator[list[Caller]]:
    """So many connections, on each of which something was sent."""
    opened: list[Caller] = []
    try:
        for _ in range(count):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            opened.append(Caller(reader, writer))
            writer.write(first)
        yield opened
    finally:
        for caller in opened:
            caller.writer.transport.abort()


class Authentic:
    """Sends one update after the other, and notes how long each answer took, in seconds."""

    def __init__(self, daemon: Daemon, first_id: int = 1_000_000) -> None:
        self._daemon = daemon
        self._next_id = first_id
        self._alone: list[float] = []
        self.seconds: list[float] = []

    async def alone(self) -> None:
        """Send while nobody else calls: what is quick is told from that."""
        async with self.traffic():
            pass
        self._alone = self.seconds

    @property
    def enough(self) -> bool:
        """Whether so much was answered that `is_quick` can tell."""
        return len(self.seconds) >= ENOUGH

    @asynccontextmanager
    async def traffic(self) -> AsyncIterator[None]:
        """Sends while it is entered, and until it was enough."""
        self.seconds = []
        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(self._run())
            yield
            await until(lambda: self.enough, 60, f"{ENOUGH} answers")
            task.cancel()

    async def _run(self) -> None:
        while True:
            self._next_id += 1
            started = time.monotonic()
            await self._daemon.accepts(message(self._next_id, chat=self._next_id))
            self.seconds.append(time.monotonic() - started)
            await asyncio.sleep(PAUSE)

    def is_quick(self, p99_more: float = P99_MORE) -> None:
        """The answers took hardly longer than those before, alone."""
        assert len(self._alone) >= ENOUGH
        most = MEDIAN_FACTOR * statistics.median(self._alone) + MEDIAN_MORE
        assert statistics.median(self.seconds) <= most
        assert _p99(self.seconds) <= _p99(self._alone) + p99_more


def _p99(seconds: list[float]) -> float:
    return sorted(seconds)[int(len(seconds) * 0.99)]
