"""Where each test's daemon lives, and a store of its own for those that need one."""

import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from servers import Server
from system.harness import Daemon, route

pytest.register_assert_rewrite("system.callers")


@pytest.fixture
def own_server(short_path: Path) -> Iterator[Server]:
    """A Valkey that the test may stop, kill and start again."""
    directory = short_path / "redis"
    directory.mkdir()
    server = Server("valkey", directory, "--appendonly", "yes", "--appendfsync", "always")
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """For the fixtures that outlive one test."""
    return "asyncio"


@pytest.fixture(scope="module")
async def shared(anyio_backend: str) -> AsyncIterator[Daemon]:
    """A daemon for all tests of a module that store nothing in it."""
    with tempfile.TemporaryDirectory(prefix="twr-") as name:
        async with Daemon(Path(name), [route("shop", "http://127.0.0.1:9/")]) as daemon:
            yield daemon
