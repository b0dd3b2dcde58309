"""Stores for the faults, each of its own kind and alone."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from servers import SERVERS, Server

pytest.register_assert_rewrite("system.faults.tools")

KEPT = ("--appendonly", "yes", "--appendfsync", "always")
StartServer = Callable[..., Server]


@pytest.fixture
def start_server(short_path: Path) -> Iterator[StartServer]:
    """Starts servers of a kind, which keep all they are told unless other options are given."""
    started: list[Server] = []

    def start(kind: str = "valkey", *options: str) -> Server:
        directory = short_path / f"store-{len(started)}"
        directory.mkdir()
        server = Server(kind, directory, *(options or KEPT))
        started.append(server)
        server.start()
        return server

    yield start
    for server in started:
        server.stop()


@pytest.fixture(params=SERVERS)
def server(request: pytest.FixtureRequest, start_server: StartServer) -> Server:
    """A server of each kind in turn."""
    return start_server(request.param)
