"""Every test of the store's behaviour runs on fakeredis, on Valkey and on Redis 7.0."""

import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from servers import SERVERS, Server
from store.world import Start, World, fake_world, real_world

pytest.register_assert_rewrite("store.machine", "store.mishaps", "store.scenes")


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
        found = fake_world()
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
