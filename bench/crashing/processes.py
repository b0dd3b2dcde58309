"""The processes of a run: daemons and a store, ended and stopped by pid, and all of it noted."""

import asyncio
import contextlib
import os
import random
import re
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from bench.crashing.record import Process, Span
from bench.crashing.updates import SECRET, SIGNING, settings
from bench.machine import ROOT, server_binary
from twr.edges.embedded import socket_path

_GIVEN = os.environ.get("PYTHONPATH")
ENVIRONMENT = {
    "PATH": os.environ["PATH"],
    # These two may be the caller's: a test plants a fault in the daemons with them.
    "PYTHONPATH": os.pathsep.join([*filter(None, [_GIVEN]), str(ROOT / "daemon")]),
    "SABOTAGE": os.environ.get("SABOTAGE", ""),
    "WEBHOOK_SECRET": SECRET,
    "SIGNING_SECRET": SIGNING,
}
PATIENCE = 40.0
REPLACED = 76


async def until(condition: Callable[[], Any], what: str, seconds: float = PATIENCE) -> None:
    """Wait until it holds, be it a plain function or not; raises TimeoutError that names it."""
    deadline = time.monotonic() + seconds
    while True:
        found = condition()
        if await found if asyncio.iscoroutine(found) else found:
            return
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {seconds:g} s")
        await asyncio.sleep(0.02)


@dataclass(slots=True)
class Stopped:
    """When something was stopped; `since` while it is."""

    spans: list[Span] = field(default_factory=list)
    since: float | None = None

    def begin(self) -> None:
        if self.since is None:
            self.since = time.monotonic()

    def end(self) -> None:
        if self.since is not None:
            self.spans.append((self.since, time.monotonic()))
            self.since = None


class Store:
    """A Redis or Valkey of the run's own, whose every answer is on disk before it is given."""

    def __init__(self, kind: str, directory: Path) -> None:
        self._kind = kind
        self._directory = directory
        self._socket = directory / "s"
        self._process: asyncio.subprocess.Process | None = None
        self.outages = Stopped()
        directory.mkdir()

    @property
    def url(self) -> str:
        return f"unix://{self._socket}"

    def settings(self, _: Path) -> dict[str, Any]:
        """What a daemon is told of it."""
        return {"url": self.url}

    async def start(self) -> None:
        """Start it and wait until it has loaded its data."""
        words = [server_binary(self._kind), "--port", "0", "--unixsocket", str(self._socket)]
        words += ["--dir", str(self._directory), "--save", "", "--maxmemory-policy", "noeviction"]
        words += ["--appendonly", "yes", "--appendfsync", "always"]
        with (self._directory / "log").open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(*words, stdout=log, stderr=log)
        await until(self.answers, "the store answers")
        self.outages.end()

    async def answers(self) -> bool:
        """Whether it answers PING."""
        return await _pings(self._socket)

    async def kill(self) -> bool:
        """End it as a crash would; whether there was anything to end."""
        assert self._process is not None
        self.outages.begin()
        self._process.kill()
        await self._process.wait()
        return True

    def stop(self) -> bool:
        """Let it do nothing until `go_on`; whether there was anything to stop."""
        assert self._process is not None
        self.outages.begin()
        self._process.send_signal(signal.SIGSTOP)
        return True

    def go_on(self) -> None:
        """Let it run again."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)
        self.outages.end()

    async def close(self) -> None:
        """End it, whatever its state."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()


class EmbeddedStore(Store):
    """The store that a daemon keeps for itself: started by it, killed and stopped by us."""

    def __init__(self, directory: Path) -> None:
        super().__init__("valkey", directory)
        self._socket = socket_path(directory)

    def settings(self, _: Path) -> dict[str, Any]:
        return {"dir": str(self._directory)}

    def _pid(self) -> int | None:
        try:
            return int((self._directory / "valkey.pid").read_text("ascii"))
        except (OSError, ValueError):
            return None

    def _signal(self, number: signal.Signals) -> bool:
        pid = self._pid()
        with contextlib.suppress(ProcessLookupError):
            if pid is not None and str(self._directory).encode() in _command_of(pid):
                os.kill(pid, number)
                return True
        return False

    async def start(self) -> None:
        """The daemon does; wait until it has."""

    async def kill(self) -> bool:
        self.outages.begin()
        return self._signal(signal.SIGKILL)

    async def back(self) -> None:
        """Wait until it is back."""
        await until(self.answers, "the embedded store answers", 3 * PATIENCE)
        self.outages.end()

    def stop(self) -> bool:
        self.outages.begin()
        return self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self._signal(signal.SIGCONT)
        self.outages.end()

    async def close(self) -> None:
        self._signal(signal.SIGKILL)


def tracebacks(log: str) -> int:
    """How many tracebacks a log holds; all lines of an entry but its first are indented."""
    return len(re.findall(r"^\s*Traceback \(most recent", log, re.MULTILINE))


def _command_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


async def _pings(path: Path) -> bool:
    try:
        async with asyncio.timeout(1.0):
            reader, writer = await asyncio.open_unix_connection(str(path))
            writer.write(b"PING\r\n")
            answer = await reader.readline()
            writer.close()
    except (OSError, TimeoutError):
        return False
    return answer.startswith(b"+PONG")


def quiet_host() -> str:
    """A loopback address that nobody else uses, by all odds: who is sent to a daemon that is dead
    must not reach another program that got its port."""
    return ".".join(["127", *(str(random.randrange(1, 255)) for _ in range(3))])


def quiet_port(host: str) -> int:
    """A port that nobody listens on, and that no client on this machine is given by chance: it
    lies below those that the kernel hands out."""
    while True:
        port = random.randrange(11_000, 32_000)
        with socket.socket() as sock, contextlib.suppress(OSError):
            sock.bind((host, port))
            return port


class Daemon:
    """One process of an instance."""

    def __init__(self, number: int, instance: str, directory: Path, host: str) -> None:
        self.number = number
        self.host = host
        self.instance = instance
        self.directory = directory
        self.port = self.admin_port = quiet_port(host)
        while self.admin_port == self.port:
            self.admin_port = quiet_port(host)
        self.stops = Stopped()
        self.killed: float | None = None
        self.exit_expected: int | None = None
        self.most_memory = 0
        self._process: asyncio.subprocess.Process | None = None

    async def start(self, target_port: int, store: Mapping[str, Any]) -> None:
        """Start it and wait for nothing."""
        listen = {
            "listen": f"{self.host}:{self.port}",
            "admin": f"{self.host}:{self.admin_port}",
            "store": dict(store),
        }
        file = self.directory / f"{self.number}.yaml"
        file.write_text(yaml.safe_dump(settings(self.instance, self.number, target_port, **listen)))
        with self.log_file.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "twr", "run", "-c", str(file)),
                cwd=self.directory,
                env=ENVIRONMENT,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    @property
    def log_file(self) -> Path:
        return self.directory / f"{self.number}.log"

    @property
    def _started(self) -> asyncio.subprocess.Process:
        assert self._process is not None
        return self._process

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    @property
    def stopped(self) -> bool:
        return self.stops.since is not None

    async def ready(self) -> bool:
        """Whether it says so."""
        try:
            async with (
                aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=2.0)) as session,
                session.get(f"http://{self.host}:{self.admin_port}/-/ready") as response,
            ):
                return response.status == 200
        except (aiohttp.ClientError, TimeoutError, OSError):
            return False

    def kill(self) -> None:
        """End it as a crash would; at once, also where it is stopped."""
        if self.running:
            self.measure()
            self.exit_expected = -signal.SIGKILL
            self.killed = time.monotonic()
            self._started.kill()

    def terminate(self) -> None:
        """Ask it to end."""
        self.exit_expected = 0
        self._started.terminate()

    def replaced(self) -> None:
        """A newer process has its name: it has to end by itself."""
        self.exit_expected = REPLACED

    def stop(self) -> None:
        """Let it do nothing until `go_on`."""
        if self.running:
            self.stops.begin()
            self._started.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Let it run again."""
        if self.running:
            self._started.send_signal(signal.SIGCONT)
        self.stops.end()

    async def ended(self, seconds: float = PATIENCE) -> None:
        """Wait for its end."""
        async with asyncio.timeout(seconds):
            await self._started.wait()
        self.stops.end()

    def measure(self) -> None:
        """Note its memory, bytes."""
        with contextlib.suppress(OSError, ValueError):
            pages = Path(f"/proc/{self._started.pid}/statm").read_text("ascii").split()[1]
            self.most_memory = max(self.most_memory, int(pages) * os.sysconf("SC_PAGE_SIZE"))

    def record(self) -> Process:
        """What the judge has to know of it."""
        return Process(self.number, self.instance, self.killed, tuple(self.stops.spans))

    def complaint(self) -> str | None:
        """How its end was another than it should be."""
        code = None if self._process is None else self._process.returncode
        if code == self.exit_expected:
            return None
        name = f"process {self.number} of {self.instance}"
        return f"{name}: ended with {code}, expected {self.exit_expected}"

    def tracebacks(self) -> int:
        """How many tracebacks its log holds."""
        return tracebacks(self._log())

    def log_lines(self) -> int:
        """How much it has said."""
        return self._log().count("\n")

    def _log(self) -> str:
        return self.log_file.read_text("utf-8", "replace") if self.log_file.exists() else ""
