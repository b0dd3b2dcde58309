"""The real command, as a process of its own."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from redis import Redis

from cli.commands import Place, with_store
from servers import Server

SOURCES = Path(__file__).parents[2] / "daemon"

ROUTES = """\
routes:
  - name: support
    target_url: http://support:8080/updates
    signing_secret_env: SUPPORT
    match: {update_types: [message]}
  - name: admin
    target_url: http://me:hunter2@admin:8080/updates
    signing_secret_env: ADMIN
    match: {commands: [/admin], user_ids: [1]}
    except: {chat_types: [channel]}
  - name: rest
    target_url: http://rest:8080/updates
    signing_secret_env: REST
    fallback: true
"""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a process ended."""

    code: int
    out: str
    err: str


Twr = Callable[..., Ended]


@pytest.fixture
def twr(tmp_path: Path) -> Twr:
    """Runs `twr` with some arguments in an empty directory and environment."""

    def run(*arguments: str | Path, stdin: bytes = b"", **environ: str) -> Ended:
        base = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(SOURCES), "HOME": str(tmp_path)}
        done = subprocess.run(
            [sys.executable, "-m", "twr", *arguments],
            cwd=tmp_path,
            env=base | environ,
            input=stdin,
            capture_output=True,
            timeout=60,
            check=False,
        )
        return Ended(done.returncode, done.stdout.decode(), done.stderr.decode())

    return run


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A valid configuration in the directory where `twr` runs."""
    file = tmp_path / "twr.yaml"
    file.write_text(ROUTES)
    return file


@pytest.fixture
def place(short_path: Path) -> Place:
    """A directory for a configuration, with room for sockets in it."""
    return Place(short_path)


@pytest.fixture
def server(short_path: Path) -> Iterator[Server]:
    """A running, empty Valkey."""
    found = Server("valkey", short_path)
    found.start()
    yield found
    found.stop()


@pytest.fixture
def redis(server: Server, place: Place) -> Iterator[Redis]:
    """A client of that server, to which the configuration of `place` leads as well."""
    place.write(with_store(server))
    with Redis(unix_socket_path=str(server.socket), decode_responses=True) as client:
        yield client
