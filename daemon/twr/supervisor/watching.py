"""The probe and its ways out: the Bot API client, the sinks, the heartbeat."""

from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
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


class Watching:
    """Owns the sessions that watching needs; an async context manager."""

    def __init__(
        self, process: Process, current: Callable[[], Current], given: Given, instance: str
    ) -> None:
        self.board = probe.Board(instance)
        self._process = process
        self._current = current
        self._given = given
        self._stack = AsyncExitStack()
        self._session: aiohttp.ClientSession | None = None
        self._bot: Telegram | None = None
        self._bot_key: tuple[str | None, ...] = ()
        self._sinks: tuple[Sink, ...] = ()
        self._heartbeat: Heartbeat | None = None

    async def __aenter__(self) -> Self:
        self._session = await self._stack.enter_async_context(open_session())
        await self.configure()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._stack.aclose()

    async def configure(self) -> None:
        """Take the configuration as it is now: the token, the sinks, the heartbeat."""
        assert self._session is not None
        config, secrets = self._current().config, self._current().secrets
        await self._configure_bot()
        sender = f"{config.bot.name}@{config.instance}"
        sinks: list[Sink] = []
        chat = config.alerts.telegram
        if chat is not None and self._bot is not None:
            sinks.append(ChatSink(self._bot, chat.chat_id, chat.message_thread_id, sender))
        if secrets.alert_webhook_url is not None:
            headers = tuple(secrets.alert_webhook_headers.items())
            sinks.append(
                WebhookSink(
                    self._session, self._given.clock, secrets.alert_webhook_url, headers, sender
                )
            )
        self._sinks = tuple(sinks)
        url = secrets.heartbeat_url
        self._heartbeat = Heartbeat(self._session, self._given.clock, url) if url else None

    async def _configure_bot(self) -> None:
        """A client is replaced only when its token or way changed: sinks stay the same places."""
        config, secrets = self._current().config, self._current().secrets
        key = (config.bot.api_url, secrets.bot_token, secrets.proxy)
        if key == self._bot_key:
            return
        self._bot_key = key
        self._bot = None
        if secrets.bot_token is not None:
            client = Telegram(
                config.bot.api_url,
                secrets.bot_token,
                proxy=secrets.proxy,
                mask=lambda: self._current().mask,
            )
            # Older ones stay open until the end: a call of theirs may be under way.
            self._bot = await self._stack.enter_async_context(client)

    async def run(self, stop: anyio.Event) -> None:
        """Probe and alert until `stop`."""
        inputs = probe.Inputs(
            settings=lambda: self._current().probe,
            bot=lambda: self._bot,
            traffic=self._process.traffic,
            local=self._process.findings,
            store=self._process.store,
        )
        outputs = probe.Outputs(
            sinks=self._sinks_now,
            heartbeat=lambda: self._heartbeat,
            metrics=self._process.metrics,
            mask=lambda text: self._current().mask(text),
            learned=self._learned,
            recall=self._recall,
        )
        await probe.run(inputs, outputs, self.board, self._given.clock, self._given.random, stop)

    def _sinks_now(self) -> Sequence[Sink]:
        return self._sinks

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
