"""The demo's small servers: the services behind twr, and the public addresses before it."""

import asyncio
import json
import time
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import aiohttp
from aiohttp import web

import twr


class Server:
    """One aiohttp handler on a free loopback port; an async context manager."""

    def __init__(self) -> None:
        self.port = 0
        self._runner: web.AppRunner | None = None

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self.answer)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.port = self._runner.addresses[0][1]
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def answer(self, request: web.Request) -> web.Response:
        """The answer to any request."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Taken:
    """An update that a service answered 200 to. `at` is in monotonic seconds."""

    update_id: int
    chat_id: int | None
    body: bytes
    attempt: int
    at: float


class Service(Server):
    """A service as one would write it: checks the signature, then does its work.

    `status` is what it answers; while it hangs it answers nothing.
    """

    def __init__(self, name: str, secret: str) -> None:
        super().__init__()
        self.name = name
        self.status = 200
        self.taken: list[Taken] = []
        self.asked = 0
        self.forged = 0
        self._secret = secret
        self._free = asyncio.Event()
        self._free.set()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.release()
        await super().__aexit__(kind, error, traceback)

    @property
    def url(self) -> str:
        """What a route names as its target."""
        return f"http://127.0.0.1:{self.port}/telegram/updates"

    @property
    def ids(self) -> list[int]:
        """The updates taken, in the order they came; one that came twice is there twice."""
        return [taken.update_id for taken in self.taken]

    def hang(self) -> None:
        """Answer nothing from now on."""
        self._free.clear()

    def release(self) -> None:
        """Answer again, what hangs first."""
        self._free.set()

    async def answer(self, request: web.Request) -> web.Response:
        body = await request.read()
        timestamp = request.headers.get("X-Webhook-Timestamp")
        signature = request.headers.get("X-Webhook-Signature")
        if not twr.verify(self._secret, body, timestamp, signature):
            self.forged += 1
            return web.Response(status=401)
        self.asked += 1
        await self._free.wait()
        if self.status == 200:
            attempt = int(request.headers["X-Webhook-Attempt"])
            self.taken.append(_taken(body, attempt))
        return web.Response(status=self.status)


def _taken(body: bytes, attempt: int) -> Taken:
    update = json.loads(body)
    inner = next(value for name, value in update.items() if name != "update_id")
    chat = inner.get("chat", {}).get("id")
    return Taken(update["update_id"], chat, body, attempt, time.monotonic())


class Front(Server):
    """A public address: passes requests on to `target`, or answers 301 once it has moved."""

    def __init__(self, target: str, path: str) -> None:
        super().__init__()
        self.moved_to: Front | None = None
        self._target = target
        self._path = path
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession()
        try:
            return await super().__aenter__()
        except BaseException:
            await self._session.close()
            raise

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await super().__aexit__(kind, error, traceback)
        if self._session is not None:
            await self._session.close()

    @property
    def url(self) -> str:
        """What Telegram would be told."""
        return f"http://127.0.0.1:{self.port}{self._path}"

    async def answer(self, request: web.Request) -> web.Response:
        if self.moved_to is not None:
            return web.Response(status=301, headers={"Location": self.moved_to.url})
        assert self._session is not None
        names = ("Content-Type", "X-Telegram-Bot-Api-Secret-Token")
        headers = {name: request.headers[name] for name in names if name in request.headers}
        try:
            async with self._session.request(
                request.method,
                f"{self._target}{request.rel_url}",
                data=await request.read(),
                headers=headers,
                allow_redirects=False,
            ) as response:
                body = await response.read()
                kind = response.content_type
                return web.Response(status=response.status, body=body, content_type=kind)
        except aiohttp.ClientError:
            return web.Response(status=502)
