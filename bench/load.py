"""The load: updates over N kept connections, as fast as they are answered or at a fixed rate.

One thread on plain sockets, with prebuilt requests, so that the generator costs little beside what
it measures. No update id is ever sent twice. At a fixed rate a latency counts from the moment at
which the request should have gone out, so that a stall is felt by all that it holds up.
"""

import argparse
import json
import re
import select
import socket
import sys
import time
from collections import Counter, deque
from dataclasses import asdict, dataclass, field
from pathlib import Path

from bench import stats, wire

_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
# How long the last answers may take, and the pause before a connection is opened again.
LAST_ANSWERS = 10.0
RECONNECT = 0.02


@dataclass(frozen=True, slots=True)
class Plan:
    """What to send; `rate` (updates a second) None is as fast as the answers come.

    `chats`: how many chats each connection writes to in turn; 0: all write to one chat.
    """

    port: int
    seconds: float
    warmup: float = 1.0
    connections: int = 40
    rate: float | None = None
    chats: int = 25
    first_id: int = wire.FIRST_ID


@dataclass(slots=True)
class Result:
    """What became of it. The window, without the warm-up, is in unix nanoseconds; the three lists
    go together, one entry for each update that was answered with 202."""

    from_ns: int = 0
    until_ns: int = 0
    ids: list[int] = field(default_factory=list)
    due_ns: list[int] = field(default_factory=list)
    done_ns: list[int] = field(default_factory=list)
    refused: dict[str, int] = field(default_factory=dict)
    broken: int = 0

    def in_window(self) -> list[tuple[int, int]]:
        """When each was due and done, of those that were answered in the window."""
        pairs = zip(self.due_ns, self.done_ns, strict=True)
        return [(due, done) for due, done in pairs if self.from_ns <= done < self.until_ns]

    @property
    def rate(self) -> float:
        """Accepted updates a second."""
        return len(self.in_window()) / ((self.until_ns - self.from_ns) / 1e9)

    def latency(self, percent: float) -> float:
        """A percentile in milliseconds."""
        return stats.percentile([(done - due) / 1e6 for due, done in self.in_window()], percent)


@dataclass(slots=True)
class _Connection:
    number: int
    link: socket.socket | None = None
    buffer: bytes = b""
    sent: int = 0
    update_id: int | None = None
    due_ns: int = 0


class Load:
    """One run of a plan."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._head = wire.request_head(f"127.0.0.1:{plan.port}")
        self._poll = select.epoll()
        self._by_fd: dict[int, _Connection] = {}
        self._idle: deque[_Connection] = deque()
        self._away: deque[tuple[float, _Connection]] = deque()
        self._next_id = plan.first_id
        self._due: deque[int] = deque()
        self._scheduled = 0
        self._refused: Counter[str] = Counter()
        self._result = Result()

    def run(self) -> Result:
        """Send all of it and wait for the last answers."""
        for number in range(self._plan.connections):
            self._open(_Connection(number))
        start = time.time_ns()
        self._result.from_ns = start + int(self._plan.warmup * 1e9)
        self._result.until_ns = self._result.from_ns + int(self._plan.seconds * 1e9)
        while (now := time.time_ns()) < self._result.until_ns:
            self._send_due(now, start)
            self._receive(self._pause(start))
        deadline = time.monotonic() + LAST_ANSWERS
        while self._waiting() and time.monotonic() < deadline:
            self._receive(0.01)
        self._result.refused = dict(self._refused)
        self._close()
        return self._result

    def _waiting(self) -> bool:
        return any(it.update_id is not None for it in self._by_fd.values())

    def _close(self) -> None:
        for connection in list(self._by_fd.values()):
            assert connection.link is not None
            connection.link.close()
        self._poll.close()

    # --- sending ----------------------------------------------------------------------------

    def _send_due(self, now: int, start: int) -> None:
        self._reopen()
        if self._plan.rate is None:
            while self._idle:
                self._send(self._idle.popleft(), time.time_ns())
            return
        while (due := start + int(self._scheduled * 1e9 / self._plan.rate)) <= now:
            self._scheduled += 1
            self._due.append(due)
        while self._due and self._idle:
            self._send(self._idle.popleft(), self._due.popleft())

    def _pause(self, start: int) -> float:
        """Seconds until something is to be sent, whatever is answered until then."""
        if self._plan.rate is None:
            return 0.01
        due = start + int(self._scheduled * 1e9 / self._plan.rate)
        return min(0.01, max(0.0, (due - time.time_ns()) / 1e9))

    def _send(self, connection: _Connection, due_ns: int) -> None:
        connection.update_id, connection.due_ns = self._next_id, due_ns
        self._next_id += 1
        connection.sent += 1
        chats = self._plan.chats
        offset = connection.number * chats + connection.sent % chats if chats else 0
        mark = wire.Mark(
            connection.update_id,
            wire.FIRST_CHAT + offset,
            connection.number,
            connection.sent,
            due_ns,
        )
        assert connection.link is not None
        try:
            connection.link.sendall(self._head + wire.update(mark))
        except OSError:
            self._broke(connection)

    # --- receiving --------------------------------------------------------------------------

    def _receive(self, seconds: float) -> None:
        # epoll counts in milliseconds, select in microseconds.
        if not select.select([self._poll], [], [], seconds)[0]:
            return
        for fd, _ in self._poll.poll(0):
            connection = self._by_fd[fd]
            assert connection.link is not None
            try:
                data = connection.link.recv(65536)
            except OSError:
                data = b""
            if not data:
                self._broke(connection)
            elif status := self._answered(connection, data):
                self._record(connection, status)

    def _answered(self, connection: _Connection, data: bytes) -> bytes | None:
        """The status of an answer that has arrived whole."""
        buffer = connection.buffer + data if connection.buffer else data
        end = buffer.find(b"\r\n\r\n")
        length = _LENGTH.search(buffer, 0, end) if end >= 0 else None
        if length is None or len(buffer) < end + 4 + int(length[1]):
            connection.buffer = buffer
            return None
        connection.buffer = b""
        return buffer[9:12]

    def _record(self, connection: _Connection, status: bytes) -> None:
        if connection.update_id is None:
            return
        if status == b"202":
            self._result.ids.append(connection.update_id)
            self._result.due_ns.append(connection.due_ns)
            self._result.done_ns.append(time.time_ns())
        else:
            self._refused[status.decode("latin-1")] += 1
        connection.update_id = None
        self._idle.append(connection)

    # --- connections ------------------------------------------------------------------------

    def _open(self, connection: _Connection) -> None:
        try:
            opened = socket.create_connection(("127.0.0.1", self._plan.port), 5)
        except OSError:
            self._away.append((time.monotonic() + RECONNECT, connection))
            return
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.link, connection.buffer, connection.update_id = opened, b"", None
        self._by_fd[opened.fileno()] = connection
        self._poll.register(opened.fileno(), select.EPOLLIN)
        self._idle.append(connection)

    def _broke(self, connection: _Connection) -> None:
        assert connection.link is not None
        fd = connection.link.fileno()
        self._poll.unregister(fd)
        del self._by_fd[fd]
        connection.link.close()
        connection.update_id = None
        if connection in self._idle:
            self._idle.remove(connection)
        self._result.broken += 1
        self._away.append((time.monotonic() + RECONNECT, connection))

    def _reopen(self) -> None:
        while self._away and self._away[0][0] <= time.monotonic():
            self._open(self._away.popleft()[1])


def main(arguments: list[str]) -> int:
    """The command line; one line of figures, and all of it as JSON with `--out`."""
    parser = argparse.ArgumentParser(prog="python -m bench.load", description=__doc__)
    parser.add_argument("port", type=int)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--warmup", type=float, default=1.0)
    parser.add_argument("--connections", type=int, default=40)
    parser.add_argument("--rate", type=float, help="updates a second; left out: closed loop")
    parser.add_argument("--chats", type=int, default=25, help="per connection; 0: one for all")
    parser.add_argument("--first-id", type=int, default=wire.FIRST_ID)
    parser.add_argument("--out", type=Path, help="write everything there as JSON")
    given = vars(parser.parse_args(arguments))
    out: Path | None = given.pop("out")
    result = Load(Plan(**given)).run()
    if out is not None:
        out.write_text(json.dumps(asdict(result)), "ascii")
    if not result.in_window():
        print(f"nothing was accepted: refused={result.refused} broken={result.broken}")
        return 1
    print(
        f"accepted={result.rate:.0f}/s p50={result.latency(50):.2f}ms "
        f"p99={result.latency(99):.2f}ms refused={result.refused} broken={result.broken}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
