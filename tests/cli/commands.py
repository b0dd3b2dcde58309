"""Running `twr` as a user does: a process of its own, with a configuration and a real store."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from redis import Redis

import twr
from servers import Server
from twr.edges.store.keys import Keys

KEYS = Keys("twr", "main")
SOURCE = str(Path(twr.__file__).parent.parent)

ROUTES = """
routes:
  - {name: support, target_url: "http://127.0.0.1:9/", signing_secret_env: SIGNING}
  - {name: billing, target_url: "http://127.0.0.1:9/", signing_secret_env: SIGNING, order: none}
"""


def with_store(server: Server) -> str:
    """A configuration with the server as its store and two routes."""
    return f"store: {{url: 'unix://{server.socket}'}}\n{ROUTES}"


# Between us and the command: the peak of a process counts that of the one it was forked from.
_MEASURE = """
import resource, subprocess, sys
code = subprocess.call(sys.argv[2:])
usage = resource.getrusage(resource.RUSAGE_CHILDREN)
with open(sys.argv[1], "w") as took:
    print(usage.ru_utime + usage.ru_stime, usage.ru_maxrss, file=took)
sys.exit(code)
"""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended; `peak` is the most memory it had, in bytes, `cpu` the seconds
    of a processor that it took."""

    code: int
    out: str
    err: str
    peak: int = 0
    cpu: float = 0.0

    @property
    def objects(self) -> list[Any]:
        """What it printed as JSON, a line each."""
        return [json.loads(line) for line in self.out.splitlines()]


@dataclass(frozen=True, slots=True)
class Place:
    """A directory with a configuration in it."""

    directory: Path

    @property
    def file(self) -> Path:
        return self.directory / "twr.yaml"

    def write(self, text: str) -> None:
        self.file.write_text(text)

    def twr(self, *arguments: str, env: Mapping[str, str] | None = None) -> Ended:
        """Run a command to its end, with nothing on standard input."""
        process = self.start(*arguments, env=env)
        out, err = process.communicate(timeout=60)
        return Ended(process.returncode, out, err)

    def measured(self, *arguments: str) -> Ended:
        """As `twr`, its output to files, and with what it took."""
        out, err, took = (self.directory / name for name in ("out", "err", "took"))
        with out.open("w") as to_out, err.open("w") as to_err:
            code = subprocess.call(
                [sys.executable, "-c", _MEASURE, str(took), *self._command(arguments)],
                stdout=to_out,
                stderr=to_err,
                env=self.environ(),
            )
        cpu, peak = took.read_text().split()
        return Ended(code, out.read_text(), err.read_text(), int(peak) * 1024, float(cpu))

    def start(
        self, *arguments: str, env: Mapping[str, str] | None = None
    ) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            self._command(arguments),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self.environ(env),
            cwd=self.directory,
        )

    def _command(self, arguments: tuple[str, ...]) -> list[str]:
        return [sys.executable, "-m", "twr", *arguments]

    def environ(self, env: Mapping[str, str] | None = None) -> dict[str, str]:
        """All that the command gets to know of the environment."""
        return {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": SOURCE,
            "TWR_CONFIG": str(self.file),
            **(env or {}),
        }


def end(process: "subprocess.Popen[str]", how: signal.Signals = signal.SIGTERM) -> Ended:
    """Send a signal and wait for the end."""
    process.send_signal(how)
    out, err = process.communicate(timeout=30)
    return Ended(process.returncode, out, err)


@dataclass(frozen=True, slots=True)
class Death:
    """A dead letter to be put into a store."""

    id: str
    reason: str = "permanent"
    attempts: int = 1
    status: str = "410"
    error: str = "410 Gone"
    answer: str = ""
    lane: str = "7"
    body: bytes | None = None
    died_ms: int | None = None


def bury(redis: "Redis", deaths: Iterable[Death]) -> None:
    """Write dead letters as the store's own scripts leave them, many at once."""
    now_ms = int(time.time() * 1000)
    for chunk in _chunks(deaths, 2000):
        pipe = redis.pipeline(transaction=False)
        for death in chunk:
            _bury(pipe, death, now_ms)
        pipe.execute()


def _bury(pipe: Any, death: Death, now_ms: int) -> None:
    update_id, _, route = death.id.partition("/")
    died = now_ms - 1000 if death.died_ms is None else death.died_ms
    body = death.body or b'{"update_id": %s}' % update_id.partition("~")[0].encode()
    update, job = KEYS.update(update_id), KEYS.job(death.id)
    fields = {"body": body, "type": "message", "lane": death.lane, "accepted_ms": died - 60_000}
    pipe.hset(update, mapping={**fields, "expires_ms": died + 86_400_000, "routes": route})
    pipe.hincrby(update, "refs", 1)
    fields = {"state": "dead", "reason": death.reason, "attempts": death.attempts}
    fields |= {"last_status": death.status, "last_error": death.error, "answer": death.answer}
    pipe.hset(job, mapping={**fields, "lane": death.lane, "died_ms": died})
    pipe.zadd(KEYS.dead_letters, {death.id: died})
    for counter in ("dead-letter:counts", "died"):
        pipe.hincrby(f"{KEYS.tag}:{counter}", f"{route}/{death.reason}", 1)


def _chunks(deaths: Iterable[Death], size: int) -> Iterator[list[Death]]:
    chunk: list[Death] = []
    for death in deaths:
        chunk.append(death)
        if len(chunk) == size:
            yield chunk
            chunk = []
    yield chunk


_MANY = """
local tag, died = KEYS[1], tonumber(ARGV[3])
for n = ARGV[1], ARGV[2] - 1 do
  local id, at = n .. '/support', died + math.floor(n / 20)
  redis.call('HSET', tag .. ':update:' .. n, 'body', '{"update_id":' .. n .. '}', 'type', 'message',
    'lane', n % 1000, 'accepted_ms', at, 'expires_ms', at, 'refs', 1, 'routes', 'support')
  redis.call('HSET', tag .. ':job:' .. id, 'state', 'dead', 'reason', 'permanent', 'attempts', 1,
    'last_status', 410, 'last_error', '410 Gone', 'answer', '', 'died_ms', at)
  redis.call('ZADD', tag .. ':dead-letter', at, id)
end
for _, counter in ipairs({':dead-letter:counts', ':died'}) do
  redis.call('HINCRBY', tag .. counter, 'support/permanent', ARGV[2] - ARGV[1])
end
"""


def bury_many(redis: "Redis", count: int, died_ms: int) -> None:
    """Write the dead letters `0/support` and on, twenty to each millisecond."""
    for first in range(0, count, 10_000):
        redis.eval(_MANY, 1, KEYS.tag, first, min(first + 10_000, count), died_ms)
