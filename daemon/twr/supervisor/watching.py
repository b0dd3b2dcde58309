"""The probe and its ways out: the Bot API client, the sinks, the heartbeat."""

from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self

import aiohttp
import anyio

from twr.core.clock import Clock
from twr.edges.notifiers import ChatSink, Heartbeat, Sink, WebhookSink, open_session
from twr.edges.telegram import Telegram
from twr.services import probe
from twr.supervisor.current import Current
from twr.supervisor.process import Process


class Given(Protocol):
    """The part of the surroundings that watching needs."""

    @property
    def clock(self) -> Clock: ...
    @property
    def random(self) -> Callable[[], float]: ...


@dataclass(frozen=True, slots=True)
class Ways:
    """The ways out that one configuration gives: the client (made for `key`), the sinks."""

    key: tuple[str | None, ...] = ()
    bot: Telegram | None = None
    sinks: tuple[Sink, ...] = ()
    heartbeat: Heartbeat | None = None


class Watching:
    """Owns the sessions that watching needs; an async context manager.

    Its messages bear the names that the process was started with, whatever a reload says.
    """

    def __init__(
        self, process: Process, current: Callable[[], Current], given: Given, instance: str
    ) -> None:
        self.board = probe.Board(instance)
        self._process = process
        self._current = current
        self._given = given
        self._stack = AsyncExitStack()
        self._sender = f"{current().config.bot.name}@{instance}"
        self._session: aiohttp.ClientSession | None = None
        self._ways = Ways()

    async def __aenter__(self) -> Self:
        self._session = await self._stack.enter_async_context(open_session())
        self.take(await self.prepare(self._current()))
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._stack.aclose()

    async def prepare(self, current: Current) -> Ways:
        """Make what a configuration asks for, without a change to what is in use."""
        assert self._session is not None
        config, secrets = current.config, current.secrets
        key = (config.bot.api_url, secrets.bot_token, secrets.proxy)
        # A client is replaced only when its token or way changed: sinks stay the same places.
        bot = self._ways.bot if key == self._ways.key else await self._open(current)
        sinks: list[Sink] = []
        chat = config.alerts.telegram
        if chat is not None and bot is not None:
            sinks.append(ChatSink(bot, chat.chat_id, chat.message_thread_id, self._sender))
        clock = self._given.clock
        if secrets.alert_webhook_url is not None:
            headers = tuple(secrets.alert_webhook_headers.items())
            url = secrets.alert_webhook_url
            sinks.append(WebhookSink(self._session, clock, url, headers, self._sender))
        beat = secrets.heartbeat_url
        heartbeat = Heartbeat(self._session, clock, beat) if beat else None
        return Ways(key, bot, tuple(sinks), heartbeat)

    def take(self, ways: Ways) -> None:
        """Use these from now on."""
        self._ways = ways

    async def _open(self, current: Current) -> Telegram | None:
        if current.secrets.bot_token is None:
            return None
        client = Telegram(
            current.config.bot.api_url,
            current.secrets.bot_token,
            proxy=current.secrets.proxy,
            mask=lambda: self._current().mask,
        )
        # Older ones stay open until the end: a call of theirs may be under way.
        return await self._stack.enter_async_context(client)

    async def run(self, stop: anyio.Event) -> None:
        """Probe and alert until `stop`."""
        inputs = probe.Inputs(
            settings=lambda: self._current().probe,
            bot=lambda: self._ways.bot,
            traffic=self._process.traffic,
            local=self._process.findings,
            store=self._process.store,
        )
        outputs = probe.Outputs(
            sinks=self._sinks_now,
            heartbeat=lambda: self._ways.heartbeat,
            metrics=self._process.metrics,
            mask=lambda text: self._current().mask(text),
            learned=self._learned,
            recall=self._recall,
        )
        await probe.run(inputs, outputs, self.board, self._given.clock, self._given.random, stop)

    def _sinks_now(self) -> Sequence[Sink]:
        return self._ways.sinks

    async def _learned(self, username: str) -> None:
        """Commands addressed to this name are ours, for each instance and after each start.

        A name that the store did not take is none yet: getMe is asked again.
        """
        if self._current().config.bot.username is not None or username == self._process.username:
            return
        await self._process.store.save_username(username)
        if self._current().config.bot.username is None:
            self._process.username = username

    async def _recall(self) -> None:
        """Take the name that another instance has learned, so that all match alike."""
        if self._process.username is None:
            known = await self._process.store.load_username()
            self._process.username = self._process.username or known
