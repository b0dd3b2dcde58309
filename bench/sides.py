"""What is compared: twr, the plain design and the bare server, each started the same way."""

import json
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench import wire
from bench.machine import DAEMON, Child, StoreServer, free_port, listens, python, until

UVLOOP = "bare-uvloop"
SIDES = ("twr", "plain", "bare", UVLOOP)


@dataclass(frozen=True, slots=True)
class Setup:
    """One side with so many routes; everything else but `concurrency` is its default.

    `embedded`: twr with a store of its own in place of the one it is given.
    """

    side: str
    routes: int = 1
    concurrency: int | None = None
    embedded: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """The routes' names."""
        return tuple(f"r{n}" for n in range(self.routes))


class Daemon:
    """A side that runs. `started` seconds passed until it took traffic."""

    def __init__(self, setup: Setup, store: StoreServer, target_port: int, folder: Path) -> None:
        self.setup = setup
        self.port = free_port()
        self.admin_port = free_port()
        begun = time.monotonic()
        self.child = _START[setup.side](self, store, target_port, folder)
        until(self._takes_traffic, f"{setup.side} takes traffic")
        self.started = time.monotonic() - begun

    def _takes_traffic(self) -> bool:
        self.child.check()
        if self.setup.side == "twr":
            return answers(f"http://127.0.0.1:{self.admin_port}/-/ready")
        return listens(self.port)


def answers(url: str) -> bool:
    """Whether a GET is answered with 200."""
    try:
        with urllib.request.urlopen(url, timeout=2) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def _twr(daemon: Daemon, store: StoreServer, target_port: int, folder: Path) -> Child:
    setup = daemon.setup
    lines = [
        f"listen: 127.0.0.1:{daemon.port}",
        f"admin: 127.0.0.1:{daemon.admin_port}",
        "instance: bench",
        f"store: {{dir: {folder / 'state'}}}" if setup.embedded else f"store: {{url: {store.url}}}",
    ]
    if setup.concurrency is not None:
        lines.append(f"delivery: {{concurrency: {setup.concurrency}}}")
    lines.append("routes:")
    for name in setup.names:
        lines.append(f"  - name: {name}")
        lines.append(f"    target_url: http://127.0.0.1:{target_port}/{name}")
        lines.append("    signing_secret_env: BENCH_SIGNING_SECRET")
    config = folder / "twr.yaml"
    config.write_text("\n".join(lines) + "\n", "ascii")
    environ = {"TELEGRAM_WEBHOOK_SECRET": wire.SECRET, "BENCH_SIGNING_SECRET": "s" * 32}
    return Child(
        python("-m", "twr", "run", "-c", str(config)), DAEMON, folder / "daemon.log", environ
    )


def _plain(daemon: Daemon, store: StoreServer, target_port: int, folder: Path) -> Child:
    urls = " ".join(f"http://127.0.0.1:{target_port}/{name}" for name in daemon.setup.names)
    environ = {"WEBHOOK_SECRET": wire.SECRET, "TARGET_URLS": urls, "REDIS_URL": store.url}
    words = ("-m", "uvicorn", "--factory", "bench.baseline_plain:create_app")
    options = ("--port", str(daemon.port), "--no-access-log")
    return Child(python(*words, *options), DAEMON, folder / "daemon.log", environ)


def _bare(daemon: Daemon, _store: StoreServer, _target_port: int, folder: Path) -> Child:
    words = ("-m", "bench.baseline_bare", str(daemon.port))
    return Child(python(*words), DAEMON, folder / "daemon.log")


def _bare_on_uvloop(daemon: Daemon, _store: StoreServer, _target_port: int, folder: Path) -> Child:
    words = ("-m", "bench.baseline_bare", str(daemon.port), "--uvloop")
    return Child(python(*words), DAEMON, folder / "daemon.log")


_START = {"twr": _twr, "plain": _plain, "bare": _bare, UVLOOP: _bare_on_uvloop}


def waiting(setup: Setup, store: StoreServer) -> dict[str, set[int]]:
    """The ids of the updates that the store still holds for each route, dead letters included."""
    if setup.side == "twr":
        return _waiting_twr(setup.names, store)
    return _waiting_plain(setup.names, store)


def _waiting_twr(names: Sequence[str], store: StoreServer) -> dict[str, set[int]]:
    dead = _members(store, "{twr:main}:dead-letter")
    found: dict[str, set[int]] = {}
    for name in names:
        alive = _members(store, f"{{twr:main}}:route:{name}:all")
        mine = [job for job in dead if job.endswith(f"/{name}")]
        found[name] = {int(job.partition("/")[0]) for job in [*alive, *mine]}
    return found


def _members(store: StoreServer, key: str) -> list[str]:
    found: list[bytes] = store.client.execute_command("ZRANGE", key, 0, -1)
    return [member.decode() for member in found]


def _waiting_plain(names: Sequence[str], store: StoreServer) -> dict[str, set[int]]:
    found: dict[str, set[int]] = {name: set() for name in names}
    for queue in ("queue", "processing"):
        for raw in store.client.lrange(queue, 0, -1):
            job = json.loads(raw)
            found[job["url"].rpartition("/")[2]].add(job["update"]["update_id"])
    return found
