"""A service that answers as fast as it can, after a delay or never, and remembers what came when.

`POST /<route>` is a delivery, `GET /report` tells all of it, `POST /release` ends every hang.
"""

import argparse
import asyncio
import json
import re
import sys
import time
from dataclasses import asdict, dataclass, field
from typing import cast

import uvloop

from bench import wire

_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
_OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


@dataclass(slots=True)
class Deliveries:
    """What came to one route; the lists go together, in the order of arrival."""

    ids: list[int] = field(default_factory=list)
    sent_ns: list[int] = field(default_factory=list)
    received_ns: list[int] = field(default_factory=list)
    disordered: int = 0


def deliveries(records: list[tuple[int, bytes]]) -> Deliveries:
    """Records (when, mark) read. Disordered is what came after something that its sender had
    written later to the same chat; a repetition is not."""
    found = Deliveries()
    last: dict[tuple[int, int], int] = {}
    for received, raw in records:
        mark = wire.read_mark(raw)
        found.ids.append(mark.update_id)
        found.sent_ns.append(mark.sent_ns)
        found.received_ns.append(received)
        if mark.seq < last.get((mark.chat, mark.sender), 0):
            found.disordered += 1
        last[mark.chat, mark.sender] = mark.seq
    return found


class Target:
    """All routes of one process. `delay` in seconds; requests to the routes of `hang` are never
    answered until they are released."""

    def __init__(self, delay: float, hang: frozenset[str]) -> None:
        self._delay = delay
        self._hang = hang
        self._held: list[asyncio.Transport] = []
        self._records: dict[str, list[tuple[int, bytes]]] = {}

    def serve(self, transport: asyncio.Transport, head: bytes, body: bytes) -> None:
        """Take one request and see to its answer."""
        method, path, _ = head.split(b" ", 2)
        name = path[1:].decode("latin-1")
        if method == b"GET":
            self._write(transport, self._report())
        elif name == "release":
            self._release()
            self._write(transport, _OK)
        else:
            self._records.setdefault(name, []).append((time.time_ns(), wire.find_mark(body)))
            self._answer(transport, name)

    def _answer(self, transport: asyncio.Transport, name: str) -> None:
        if name in self._hang:
            self._held.append(transport)
        elif self._delay:
            asyncio.get_running_loop().call_later(self._delay, self._write, transport, _OK)
        else:
            transport.write(_OK)

    def _write(self, transport: asyncio.Transport, answer: bytes) -> None:
        if not transport.is_closing():
            transport.write(answer)

    def _release(self) -> None:
        self._hang = frozenset()
        for transport in self._held:
            self._write(transport, _OK)
        self._held.clear()

    def _report(self) -> bytes:
        found = {name: asdict(deliveries(it)) for name, it in self._records.items()}
        body = json.dumps(found).encode()
        return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)


class _Connection(asyncio.Protocol):
    def __init__(self, target: Target) -> None:
        self._target = target
        self._buffer = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclasses of it.
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while (end := self._buffer.find(b"\r\n\r\n")) >= 0:
            length = _LENGTH.search(self._buffer, 0, end)
            whole = end + 4 + (int(length[1]) if length else 0)
            if len(self._buffer) < whole:
                return
            head, body = self._buffer[:end], self._buffer[end + 4 : whole]
            self._buffer = self._buffer[whole:]
            assert self._transport is not None
            self._target.serve(self._transport, head, body)


async def run(port: int, target: Target) -> None:
    """Serve until the process ends."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: _Connection(target), "127.0.0.1", port, backlog=1024)
    async with server:
        await server.serve_forever()


def main(arguments: list[str]) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.target", description=__doc__)
    parser.add_argument("port", type=int)
    parser.add_argument("--delay-ms", type=float, default=0.0)
    parser.add_argument("--hang", nargs="*", default=[], metavar="ROUTE")
    given = parser.parse_args(arguments)
    uvloop.run(run(given.port, Target(given.delay_ms / 1000, frozenset(given.hang))))


if __name__ == "__main__":
    main(sys.argv[1:])
