"""Every test of the store's behaviour runs on fakeredis, on Valkey and on Redis 7.0."""

import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import fakeredis
import pytest
from redis.asyncio import Redis

from fakes import fake_redis, fake_script
from servers import SERVERS, Server
from store.world import World
from twr.edges.store.client import connect, script

Start = Callable[[str], Server]


@pytest.fixture(scope="session")
def shared_server() -> Iterator[Start]:
    """Starts a server of a kind at its first use; all tests of the session share it."""
    running: dict[str, Server] = {}
    with ExitStack() as stack:

        def start(kind: str) -> Server:
            if kind not in running:
                name = stack.enter_context(tempfile.TemporaryDirectory(prefix="twr-"))
                running[kind] = Server(kind, Path(name))
                running[kind].start()
                stack.callback(running[kind].stop)
            return running[kind]

        yield start


@pytest.fixture(params=["fake", *SERVERS])
async def world(request: pytest.FixtureRequest, shared_server: Start) -> AsyncIterator[World]:
    """An empty store on each backend."""
    if request.param == "fake":
        server = fakeredis.FakeServer()
        found = World(lambda: fake_redis(server), fake_script)
    else:
        found = await real_world(shared_server(request.param))
    yield found
    await found.close()


@pytest.fixture(params=SERVERS)
async def real(request: pytest.FixtureRequest, shared_server: Start) -> AsyncIterator[World]:
    """An empty store on each real server, for what fakeredis cannot do."""
    found = await real_world(shared_server(request.param))
    yield found
    await found.close()


async def real_world(server: Server) -> World:
    """The server, emptied, with its usual settings."""

    def client() -> Redis:
        return connect(server.url)

    found = World(client, script)
    await found.redis.flushall()
    await found.redis.config_set("maxmemory", "0")
    return found
