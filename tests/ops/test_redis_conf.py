"""The Redis settings, read by a real server."""

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from tools import ROOT, tool

CONF = ROOT / "etc/redis/twr-redis.conf"


@pytest.fixture
def server(short_path: Path) -> Iterator[redis.Redis]:
    """redis-server with a configuration of its own that ends with ours."""
    path = short_path / "redis.sock"
    own = short_path / "redis.conf"
    own.write_text(
        f"port 0\nunixsocket {path}\ndir {short_path}\nmaxmemory-policy allkeys-lru\n"
        f"save 60 1\ninclude {CONF}\n"
    )
    process = subprocess.Popen([tool("redis-server"), own], stdout=subprocess.DEVNULL)
    client = redis.Redis(unix_socket_path=str(path), decode_responses=True)
    deadline = time.monotonic() + 10
    while True:
        try:
            client.ping()
            break
        except redis.ConnectionError:
            assert process.poll() is None
            assert time.monotonic() < deadline
    yield client
    client.close()
    process.terminate()
    process.wait(10)


def test_nothing_acknowledged_is_lost(server: redis.Redis) -> None:
    """Every write is on disk before it is answered, and nothing is ever evicted."""
    expected = {
        "appendonly": "yes",
        "appendfsync": "always",
        "no-appendfsync-on-rewrite": "no",
        "save": "",
        "maxmemory": str(512 * 1024 * 1024),
        "maxmemory-policy": "noeviction",
        "timeout": "0",
    }
    assert server.config_get(*expected) == expected


def test_the_settings_win_over_those_before_them() -> None:
    """Included last, the file holds no port, address or directory of its own."""
    keys = [line.split()[0] for line in CONF.read_text().splitlines() if line[:1] not in ("", "#")]
    assert {"port", "bind", "dir", "unixsocket", "include"}.isdisjoint(keys)
    assert len(set(keys)) == len(keys)
