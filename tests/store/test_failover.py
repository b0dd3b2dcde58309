"""A server that is demoted while other connections lead nowhere."""

import asyncio
import ssl
from pathlib import Path

import pytest

from hooks import certificate
from twr.edges.store.client import Client, connect
from twr.errors import StoreUnavailable

pytestmark = pytest.mark.anyio


class Demoted:
    """Speaks for a server over TLS: well at first, then as a replica, all of whose other
    connections are to a machine that is gone: nothing is read there any more."""

    def __init__(self) -> None:
        self.demoted = False
        self._transports: set[asyncio.WriteTransport] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._transports.add(writer.transport)
        while data := await reader.read(1 << 16):
            if b"EVALSHA" not in data:
                writer.write(b"+OK\r\n" * data.count(b"CLIENT"))
            elif not self.demoted:
                writer.write(b"*0\r\n")
            else:
                self._abandon_all_but(writer.transport)
                writer.write(b"-READONLY You can't write against a read only replica.\r\n")

    def _abandon_all_but(self, one: asyncio.WriteTransport) -> None:
        for transport in self._transports - {one}:
            assert isinstance(transport, asyncio.Transport)
            transport.pause_reading()

    def close(self) -> None:
        for transport in self._transports:
            transport.abort()


async def test_a_demotion_is_told_to_each_caller_at_once(tmp_path: Path) -> None:
    """None waits until the other connections are closed, and none is cancelled by one who does."""
    tls, _ = certificate(tmp_path, "localhost")
    assert isinstance(tls, ssl.SSLContext)
    demoted = Demoted()
    server = await asyncio.start_server(demoted.serve, "127.0.0.1", 0, ssl=tls)
    port = server.sockets[0].getsockname()[1]
    client = Client(connect(f"rediss://127.0.0.1:{port}/0?protocol=2&ssl_cert_reqs=none"), "{t}")
    try:
        await asyncio.gather(*(client.run("stats") for _ in range(4)))
        demoted.demoted = True
        async with asyncio.timeout(1.0):
            calls = (client.run("stats") for _ in range(3))
            found = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(one) for one in found] == [StoreUnavailable] * 3
    finally:
        demoted.close()
        server.close()
