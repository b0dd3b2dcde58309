"""Everything the demo needs, started together and gone together."""

import json
import os
import secrets
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import aiohttp
import anyio

from twr.demo.child import Twr
from twr.demo.failure import StepError, check
from twr.demo.servers import Front, Service
from twr.double import Delivery, TelegramDouble
from twr.edges.embedded import socket_path

PATH = "/webhooks/telegram"
PATIENCE = 10.0
"""Seconds after which what should have happened has not."""

TIME_SCALE = 0.02
"""How long one of Telegram's seconds takes in the demo."""

_LOOK_EVERY = 0.01
_ASK_EVERY = 0.05

_LONGEST_PLACE = 60

_CONFIG = """\
bot:
  api_url: {api_url}
  webhook_url: {webhook_url}
listen: 127.0.0.1:{port}
admin: 127.0.0.1:{admin_port}
path: {path}
store: {{dir: {store}}}
instance: demo
shutdown_grace: 2s
delivery:
  timeout: 2s
  backoff: {{first: 200ms, max: 2s}}
  breaker: {{failures: 3, cooldown: 300ms, max_cooldown: 1s}}
probe: {{interval: 300ms}}
alerts:
  telegram: {{chat_id: -1001234567890}}
routes:
  - name: shop
    target_url: {shop}
    signing_secret_env: SHOP_SIGNING_SECRET
    match: {{commands: [/order]}}
  - name: support
    target_url: {support}
    signing_secret_env: SUPPORT_SIGNING_SECRET
    match: {{update_types: [message, callback_query]}}
  - name: audit
    target_url: {audit}
    signing_secret_env: AUDIT_SIGNING_SECRET
    match: {{callback_prefixes: ["order:"]}}
"""


class Stage:
    """The double, the services, the two public addresses and the daemon.

    An async context manager for asyncio; when it ends nothing is left, neither processes nor
    files, except `kept_log` where `keep_log` was called.
    """

    def __init__(self) -> None:
        self.double = TelegramDouble(time_scale=TIME_SCALE)
        keys = {name: secrets.token_urlsafe(32) for name in ("shop", "support", "audit")}
        self.shop, self.support, self.audit = (Service(name, key) for name, key in keys.items())
        self._secrets = {
            "BOT_TOKEN": self.double.token,
            "TELEGRAM_WEBHOOK_SECRET": secrets.token_urlsafe(32),
            **{f"{name.upper()}_SIGNING_SECRET": key for name, key in keys.items()},
        }
        self._stack = AsyncExitStack()

    @property
    def services(self) -> tuple[Service, ...]:
        """All three."""
        return (self.shop, self.support, self.audit)

    async def __aenter__(self) -> Self:
        try:
            await self._build()
        except BaseException:
            await self._close()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._close()

    async def _build(self) -> None:
        enter = self._stack.enter_async_context
        self.home = Path(tempfile.mkdtemp(prefix="twr-demo-", dir=_place()))
        self._stack.callback(shutil.rmtree, self.home, ignore_errors=True)
        self.config, self.env_file = self.home / "twr.yaml", self.home / "twr.env"
        self._store = self.home / "store"
        self._stack.callback(_remove_socket_of, self._store)
        await enter(self.double)
        for service in self.services:
            await enter(service)
        self.port, self.admin_port = (_reserve(self._stack) for _ in range(2))
        self.url = f"http://127.0.0.1:{self.port}{PATH}"
        self.old, self.new = (Front(f"http://127.0.0.1:{self.port}", PATH) for _ in range(2))
        await enter(self.old)
        await enter(self.new)
        self._session = await enter(
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=PATIENCE))
        )
        lines = [f"{name}={value}\n" for name, value in self._secrets.items()]
        self.env_file.touch(0o600)
        self.env_file.write_text("".join(lines))
        self.configure(self.old.url)
        self.twr = Twr(self.config, self.env_file, self._store, self.home / "daemon.log")
        self._stack.push_async_callback(self.twr.stop)

    async def _close(self) -> None:
        with anyio.CancelScope(shield=True):
            await self._stack.aclose()

    def configure(self, webhook_url: str) -> None:
        """Write the configuration with this public address; a running daemon takes it over."""
        text = _CONFIG.format(
            api_url=self.double.api_url,
            webhook_url=webhook_url,
            port=self.port,
            admin_port=self.admin_port,
            path=PATH,
            store=json.dumps(str(self._store)),
            **{service.name: service.url for service in self.services},
        )
        fresh = self.config.with_suffix(".new")
        fresh.write_text(text)
        fresh.replace(self.config)

    def keep_log(self) -> Path:
        """Save the daemon's log where it outlives the stage, and give the place."""
        handle, name = tempfile.mkstemp(prefix="twr-demo-", suffix=".log")
        with open(handle, "w") as file:
            file.write(self.twr.log())
        return Path(name)

    async def until(
        self, condition: Callable[[], bool], expected: str, seen: Callable[[], object]
    ) -> None:
        """Wait until the condition holds; StepError with both texts when it does not."""
        deadline = time.monotonic() + PATIENCE
        while not condition():
            check(expected, time.monotonic() < deadline, seen())
            await anyio.sleep(_LOOK_EVERY)

    async def until_status(
        self, condition: Callable[[dict[str, Any]], bool], expected: str
    ) -> dict[str, Any]:
        """Wait until the daemon's status is as it should be; the status then."""
        deadline = time.monotonic() + PATIENCE
        while True:
            status = await self.status()
            if condition(status):
                return status
            check(expected, time.monotonic() < deadline, json.dumps(status))
            await anyio.sleep(_ASK_EVERY)

    async def until_ready(self) -> None:
        """Wait until the daemon takes updates; StepError when it ends or does not get there."""
        expected = "the daemon to get ready"
        deadline = time.monotonic() + PATIENCE
        while await self._ask("/-/ready") is None:
            check(expected, self.twr.code is None, f"it ended with {self.twr.code}")
            check(expected, time.monotonic() < deadline, f"not ready after {PATIENCE:g} s")
            await anyio.sleep(_ASK_EVERY)

    async def until_logged(self, text: str, after: int = 0) -> None:
        """Wait until the daemon's log says `text`, past its first `after` characters."""
        await self.until(
            lambda: text in self.twr.log()[after:],
            f"the log line `{text}`",
            lambda: "no such line",
        )

    async def until_taken(self, service: Service, ids: list[int]) -> None:
        """Wait until the service has taken all these updates."""
        wanted = set(ids)

        def seen() -> str:
            forged = f", and {service.forged} with a wrong signature" if service.forged else ""
            return f"{len(wanted & set(service.ids))} of them{forged}"

        many = f"{len(wanted)} updates" if len(wanted) > 1 else f"update {ids[0]}"
        await self.until(lambda: wanted <= set(service.ids), f"{service.name} to get {many}", seen)

    async def until_none_pending(self) -> None:
        """Wait until Telegram has handed everything over."""
        double = self.double
        await self.until(lambda: double.pending == 0, "none pending", lambda: double.pending)

    async def status(self) -> dict[str, Any]:
        """The daemon's status as /status gives it."""
        status = await self._ask("/status")
        check("an answer to GET /status", status is not None, "none")
        assert status is not None
        return status

    async def send(self, update: str | bytes = "message", **fields: Any) -> Delivery:
        """Let Telegram push an update, and wait until twr has taken it."""
        try:
            return await self.double.push(update, timeout=PATIENCE, **fields)
        except TimeoutError as error:
            raise StepError("twr to take an update", str(error)) from None

    async def _ask(self, path: str) -> dict[str, Any] | None:
        try:
            url = f"http://127.0.0.1:{self.admin_port}{path}"
            async with self._session.get(url) as response:
                return dict(await response.json()) if response.status == 200 else None
        except (aiohttp.ClientError, TimeoutError, ValueError):
            return None


def _place() -> str | None:
    """Where temporary things go; not where a path is too long for the socket of the store."""
    return "/tmp" if len(os.fsencode(tempfile.gettempdir())) > _LONGEST_PLACE else None


def _reserve(stack: AsyncExitStack) -> int:
    """A port that stays ours, for a daemon that is started more than once.

    Linux gives a port to nobody else while it is bound, and still lets the daemon listen on it.
    """
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind(("127.0.0.1", 0))
    port: int = sock.getsockname()[1]
    if sys.platform == "linux":
        stack.callback(sock.close)
    else:
        sock.close()
    return port


def _remove_socket_of(store: Path) -> None:
    """The store's socket has a directory of its own where the path of ours is too long for it."""
    directory = socket_path(store).parent
    if directory != store:
        shutil.rmtree(directory, ignore_errors=True)
