"""Secrets, and what repeats them: the neighbours of a daemon, and faults of its own."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from redis.asyncio import Redis

from servers import Server
from system.harness import free_port
from targets import Received, reply

# So random that no part of one stands anywhere by chance.
BARE_TOKEN = "AAk3VwQ9zRt7LmXf2PbNc8HsJd5YgUe4Ta6"
TOKEN = f"7000000001:{BARE_TOKEN}"
WEBHOOK = "Rj5_tWq8-ZkL2nVx"
SIGNING = 'f/Q7w "Xz3b\\N9kc'
SIGNING_OLD = "Vé2hTé8pKw4RmÉq6"
TARGET_TOKEN = "bN8_vGx3-QzT6kLw"
TARGET_PASSWORD = "Yd7/pW+2kR=mX5@qJ"
STORE_PASSWORD = "hT4@zB:9vKq/3Lw8"
STALE_PASSWORD = "cM6xRf2WnJ8tVp"
PROXY_PASSWORD = "kZ9sDq4LxH7wBt"
ALERT_PATH = "nQ3jTy8VfW5rKc"
ALERT_PASSWORD = "gX6mLp2HzR9dSw"
ALERT_HEADER = "tB5vJk7NqC3xFy"
HEARTBEAT_PATH = "wL8hPz4DmG6sQk"
INLINE = "xW4nGd9TqHk2Pv"
TEXT = "Mc2zYv7KtR5pLx9"

SECRETS = (
    BARE_TOKEN, WEBHOOK, SIGNING, SIGNING_OLD, TARGET_TOKEN, TARGET_PASSWORD, STORE_PASSWORD,
    STALE_PASSWORD, PROXY_PASSWORD, ALERT_PATH, ALERT_PASSWORD, ALERT_HEADER, HEARTBEAT_PATH,
    INLINE,
)  # fmt: skip


async def echo(request: Received, writer: asyncio.StreamWriter) -> bool:
    """Refuses with all that it was sent: in the reason, in a header and in the body, as text and
    as JSON, now here and now there across the end of what is kept of it."""
    said = f"{request.path} {[*request.headers]}"
    kept = [value for name, value in request.headers if "Token" in name or name == "Authorization"]
    loud = " ".join([*kept, *(value for _, value in request.headers), request.path])
    body = json.dumps({"ok": False, "error_code": 500, "description": said, "loud": loud})
    everything = f"{loud}{body}{said}".encode() + request.body
    update = request.update_id if request.header("X-Telegram-Update-Id") else 0
    if update % 2:
        everything = b"." * (490 + update) + everything
    reason = "." * (54 + 9 * update % 27) + loud
    writer.write(reply(500, everything, reason=reason[:2000], X_Echo=loud, Location=loud))
    return True


# Started with the daemon's process: faults that say everything they know, traceback and all.
BUG = """
import pathlib
from twr.edges.store import Store
from twr.edges.sender import Sender
from twr.supervisor import Daemon

def bugged(owner, name):
    real = getattr(owner, name)
    async def call(self, *args, **kwargs):
        if pathlib.Path("break-" + name).exists():
            raise RuntimeError("a bug: " + pathlib.Path("known").read_text())
        return await real(self, *args, **kwargs)
    setattr(owner, name, call)

for owner, name in ((Store, "turn"), (Store, "sweep"), (Store, "stats"), (Store, "accept"),
                    (Sender, "post"), (Daemon, "run")):
    bugged(owner, name)
"""


class Locked(Server):
    """A server that wants a password."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir()
        super().__init__("redis", directory, "--requirepass", STORE_PASSWORD)
        self.port = free_port()
        self.options += ("--port", str(self.port), "--bind", "127.0.0.1")

    def answers(self) -> bool:
        return self.socket.exists()


@asynccontextmanager
async def locked(directory: Path) -> AsyncIterator[Locked]:
    server = Locked(directory)
    server.start()
    try:
        yield server
    finally:
        server.stop()


async def command(server: Locked, *words: str) -> Any:
    redis = Redis.from_url(f"unix://{server.socket}", password=STORE_PASSWORD)
    try:
        return await redis.execute_command(*words)
    finally:
        await redis.aclose()
