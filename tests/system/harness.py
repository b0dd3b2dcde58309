"""The real daemon as a process: what it is configured with, what is sent to it, what it says."""

import asyncio
import contextlib
import json
import os
import random
import re
import signal
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import aiohttp
import yaml
from prometheus_client.parser import text_string_to_metric_families

from targets import Received, Target
from twr import verify
from twr.edges.embedded import Embedded, socket_path
from twr.edges.store import Identity, Store, open_store
from until import until

ROOT = Path(__file__).resolve().parents[2]
SECRET = "telegram-secret"
SIGNING = "signing-secret"
ENVIRONMENT = {"WEBHOOK_SECRET": SECRET, "SIGNING_SECRET": SIGNING}
SECRET_HEADER = "X-Telegram-Bot-Api-Secret-Token"

Answer = tuple[int, dict[str, Any]]


def message(update_id: int, chat: int = 7, text: str = "hello") -> dict[str, Any]:
    """A message as Telegram sends it, as far as routing looks at it."""
    sender = {"id": chat, "is_bot": False, "first_name": "Ada"}
    return {
        "update_id": update_id,
        "message": {
            "message_id": update_id,
            "from": sender,
            "chat": {"id": chat, "type": "private"},
            "date": 1_788_088_524,
            "text": text,
        },
    }


def callback(update_id: int, user: int = 7, data: str = "order:1") -> dict[str, Any]:
    """A pressed button."""
    sender = {"id": user, "is_bot": False, "first_name": "Ada"}
    return {"update_id": update_id, "callback_query": {"id": "1", "from": sender, "data": data}}


def route(name: str, target: Target | str, **fields: Any) -> dict[str, Any]:
    """A route of the configuration."""
    url = target if isinstance(target, str) else target.url
    return {"name": name, "target_url": url, "signing_secret_env": "SIGNING_SECRET", **fields}


def signed(request: Received, secret: str = SIGNING) -> bool:
    """Whether the request carries the one signature of its body."""
    stamp, signature = request.header("X-Webhook-Timestamp"), request.header("X-Webhook-Signature")
    return verify(secret, request.body, stamp, signature)


def free_port() -> int:
    """A port that nobody listens on, below those that outgoing connections take."""
    while True:
        port = random.randrange(10_000, 32_000)
        with socket.socket() as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with contextlib.suppress(OSError):
                sock.bind(("127.0.0.1", port))
                return port


class Daemon:
    """`twr run` with routes and any other setting; `async with` starts it and cleans up.

    It may be killed and started again on the same directory. Its log is printed when the block
    fails.
    """

    def __init__(
        self,
        directory: Path,
        routes: list[dict[str, Any]],
        *,
        store_url: str | None = None,
        environ: Mapping[str, str] | None = None,
        **settings: Any,
    ) -> None:
        self.directory = directory
        self.environ = {**ENVIRONMENT, **(environ or {})}
        self.port = self.admin_port = free_port()
        while self.admin_port == self.port:
            self.admin_port = free_port()
        store: dict[str, Any] = {"dir": str(directory / "state")}
        if store_url is not None:
            store = {"url": store_url}
        self.settings: dict[str, Any] = {
            "bot": {"name": "main", "secret_token_env": "WEBHOOK_SECRET"},
            "listen": f"127.0.0.1:{self.port}",
            "path": "/hook",
            "admin": f"127.0.0.1:{self.admin_port}",
            "store": store,
            "instance": "vps-1",
            "routes": routes,
            **settings,
        }
        self.file = directory / "twr.yaml"
        self.embedded = store_url is None
        self.store_url = store_url or f"unix://{socket_path(directory / 'state')}"
        self.options: tuple[str, ...] = ()
        self.process: asyncio.subprocess.Process | None = None
        self._log_file = directory / "log"
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=30))
        try:
            await self.start()
        except BaseException:
            await self._clean_up()
            print(self.log())  # noqa: T201
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._clean_up()
        if error is not None:
            print(self.log())  # noqa: T201

    async def _clean_up(self) -> None:
        if self._session is not None:
            await self._session.close()
        if self.running:
            self.signal(signal.SIGCONT)
            await self.kill()
        if self.embedded:
            await Embedded(self.directory / "state", 0).stop_leftover()

    # --- its process ------------------------------------------------------------------------

    def write(self, **changes: Any) -> None:
        """Write the configuration as an editor does: a new file, put in the old one's place."""
        self.settings |= changes
        new = self.file.with_name("twr.yaml.new")
        new.write_text(yaml.safe_dump(self.settings))
        new.rename(self.file)

    async def spawn(self, *options: str) -> None:
        """Start the process and wait for nothing."""
        assert not self.running
        self.write()
        with self._log_file.open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-W", "error::ResourceWarning", "-m", "twr", "run", "-c", str(self.file)),
                *self.options,
                *options,
                cwd=self.directory,
                env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT / "daemon")} | self.environ,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    async def start(self) -> None:
        """Start the process and wait until it is ready."""
        await self.spawn()
        await self.ready()

    async def ready(self, within: float = 20.0) -> None:
        """Wait until the daemon says that it is ready."""

        async def ready() -> bool:
            assert self.running, "the daemon has ended"
            return (await self.readiness())[0] == 200

        await until(ready, within, "readiness")

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.returncode is None

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    async def kill(self) -> None:
        """End the process as a crash would."""
        self.signal(signal.SIGKILL)
        await self.ended()

    async def stop(self, within: float = 30.0) -> int:
        """Ask the process to end; its exit code."""
        self.signal(signal.SIGTERM)
        return await self.ended(within)

    async def ended(self, within: float = 30.0) -> int:
        """Wait for the end of the process; its exit code."""
        assert self.process is not None
        async with asyncio.timeout(within):
            return await self.process.wait()

    # --- what it says -----------------------------------------------------------------------

    def log(self) -> str:
        """All it has said, in all of its lives."""
        return self._log_file.read_text() if self._log_file.exists() else ""

    def logged(self, pattern: str) -> list[str]:
        """The lines of its log that hold what the pattern says."""
        return [line for line in self.log().splitlines() if re.search(pattern, line)]

    async def says(self, pattern: str, within: float = 10.0) -> str:
        """The first such line, once there is one."""
        return (await until(lambda: self.logged(pattern), within, f"the line {pattern!r}"))[0]

    async def readiness(self) -> Answer:
        """The answer of /-/ready; (0, {}) while nobody listens."""
        try:
            return await self._get("/-/ready")
        except aiohttp.ClientConnectionError:
            return 0, {}

    async def status(self) -> dict[str, Any]:
        return (await self._get("/status"))[1]

    async def route(self, name: str) -> dict[str, Any]:
        """What the status says of one route."""
        routes: list[dict[str, Any]] = (await self.status())["routes"]
        return next(row for row in routes if row["name"] == name)

    async def comes(self, name: str, within: float = 10.0, **expected: Any) -> dict[str, Any]:
        """The row of a route, once it shows what is expected of it."""
        row: dict[str, Any] = {}

        async def shows() -> bool:
            nonlocal row
            row = await self.route(name)
            return all(row[key] == value for key, value in expected.items())

        try:
            await until(shows, within)
        except AssertionError:
            assert row == {**row, **expected}
        return row

    async def metric(self, name: str, **labels: str) -> float:
        """One sample of the metrics; 0.0 where there is none."""
        async with self.session.get(f"{self.admin_url}/metrics") as response:
            text = await response.text()
        samples = (s for family in text_string_to_metric_families(text) for s in family.samples)
        return next((s.value for s in samples if s.name == name and s.labels == labels), 0.0)

    async def _get(self, path: str) -> Answer:
        async with self.session.get(f"{self.admin_url}{path}") as response:
            return response.status, await response.json()

    # --- what is sent to it -----------------------------------------------------------------

    @property
    def session(self) -> aiohttp.ClientSession:
        assert self._session is not None
        return self._session

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook"

    @property
    def admin_url(self) -> str:
        return f"http://127.0.0.1:{self.admin_port}"

    async def post(
        self, update: Mapping[str, Any] | bytes, *, secret: str = SECRET, **headers: str
    ) -> Answer:
        """POST an update as Telegram does; the status and the JSON of the answer."""
        body = update if isinstance(update, bytes) else as_telegram_writes(update)
        sent = {SECRET_HEADER: secret, "Content-Type": "application/json"}
        sent |= {name.replace("_", "-"): value for name, value in headers.items()}
        async with self.session.post(self.url, data=body, headers=sent) as response:
            return response.status, await response.json()

    async def accepts(self, *updates: Mapping[str, Any], deliveries: int = 1) -> None:
        """POST updates that are to be stored."""
        for update in updates:
            assert await self.post(update) == (202, {"status": "queued", "deliveries": deliveries})

    async def raw(self, data: bytes, *, more_to_come: bool = False) -> bytes:
        """All that comes back for these bytes, to the end of the connection; they are all that
        is sent unless `more_to_come`."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            writer.write(data)
            await writer.drain()
            if not more_to_come:
                writer.write_eof()
            async with asyncio.timeout(15):
                return await reader.read()
        finally:
            writer.close()

    def open_store(self) -> Store:
        """The daemon's store, as another process sees it; close it."""
        who = Identity("test", "test")
        return open_store(self.store_url, prefix="twr", bot="main", identity=who, dedup_ttl=90_000)


def as_telegram_writes(update: Mapping[str, Any]) -> bytes:
    """The JSON of an update with the newline that Telegram puts behind the first comma."""
    return json.dumps(update, separators=(",", ":")).replace(",", ",\n", 1).encode()
