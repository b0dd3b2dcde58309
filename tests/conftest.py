"""What every test may use."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from servers import SERVERS, Server


@pytest.fixture
def anyio_backend() -> str:
    """All asynchronous tests run on asyncio, as the daemon does."""
    return "asyncio"


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A directory whose name leaves room for a unix socket's path (108 bytes)."""
    with tempfile.TemporaryDirectory(prefix="twr-") as name:
        yield Path(name)


@pytest.fixture(scope="session")
def store_server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A real server that all tests of a session share; its kind is the parameter."""
    with tempfile.TemporaryDirectory(prefix="twr-") as name:
        server = Server(getattr(request, "param", SERVERS[0]), Path(name))
        server.start()
        yield server
        server.stop()
