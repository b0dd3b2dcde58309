"""A stand-in for Telegram: a Bot API server that pushes updates as the real one does."""

import asyncio
import contextlib
import ipaddress
import json
import random
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

from aiohttp import web

from twr.core.clock import Clock
from twr.double.api import FAULTS, Handler, application
from twr.double.pusher import Delivery, Pusher, Report, Waiting
from twr.double.rules import (
    RefusalError,
    Webhook,
    allowed_updates,
    lifetime,
    permits,
    queue_key,
    truth,
    update_type,
    webhook,
)
from twr.double.samples import sample
from twr.double.wire import Endpoint, Limits, encode_update

TOKEN = "7000000001:double-token-double-token-double-00"
USERNAME = "double_bot"
FIRST_UPDATE_ID = 512_340_001


class TelegramDouble:
    """A Bot API server on a loopback port, and the pushing of updates to the webhook set there.

    An async context manager; it lives in the event loop that enters it. Inside,
    `api_url` and `token` are what a client needs.

    `time_scale` is how long one of Telegram's seconds takes: 0.01 makes a minute of waiting
    0.6 s. It scales every delay, limit and lifetime; `limits` are Telegram's seconds too.

    `resolve` maps a host name, as in a webhook URL, to where it leads: `http://127.0.0.1:8080`
    (as behind a front that ends TLS) or `https://127.0.0.1:8443` (TLS checked with `ssl`). It
    may be changed at any time. Names that are neither in it nor the loopback do not resolve,
    so nothing leaves the machine.

    `local` is the Bot API's own local mode: http and any port are allowed.
    """

    def __init__(
        self,
        *,
        token: str = TOKEN,
        username: str = USERNAME,
        port: int = 0,
        time_scale: float = 1.0,
        resolve: Mapping[str, str] | None = None,
        ssl: ssl.SSLContext | None = None,
        local: bool = True,
        limits: Limits | None = None,
        clock: Clock | None = None,
        random: Callable[[], float] = random.random,
    ) -> None:
        self.token = token
        self.username = username
        self.time_scale = time_scale
        self.resolve = dict(resolve or {})
        self.local = local
        self.deliveries: list[Delivery] = []
        self.executed: list[dict[str, Any]] = []
        self.sent: list[dict[str, Any]] = []
        self.dropped: list[tuple[int, str]] = []
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.closing = asyncio.Event()
        self.methods: dict[str, Handler] = {
            "getme": self._get_me,
            "getwebhookinfo": self._get_webhook_info,
            "setwebhook": self._set_webhook,
            "deletewebhook": self._delete_webhook,
            "getupdates": self._get_updates,
            "sendmessage": self._send_message,
        }
        self._port = port
        self._ssl = ssl
        self._clock = clock or Clock(time.time, time.monotonic)
        self._fault: str | None = None
        self._allowed: frozenset[str] | None = None
        self._last_error: tuple[int, str] | None = None
        self._next_set = float("-inf")
        self._next_id = FIRST_UPDATE_ID
        self._count = 0
        self._changed = asyncio.Event()
        self._push_task: asyncio.Task[None] | None = None
        self._runner: web.AppRunner | None = None
        self._pusher = Pusher(
            self._now, self._clock.monotonic, random, time_scale, limits or Limits(), self._report()
        )

    async def __aenter__(self) -> Self:
        self._runner = web.AppRunner(application(self), access_log=None, shutdown_timeout=0.5)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self._port)
        await site.start()
        self._port = self._runner.addresses[0][1]
        self._push_task = asyncio.create_task(self._pusher.run())
        self._push_task.add_done_callback(lambda task: self._changed.set())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.closing.set()
        try:
            if self._push_task is not None:
                self._push_task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await self._push_task
        finally:
            if self._runner is not None:
                await self._runner.cleanup()

    @property
    def api_url(self) -> str:
        """The server to configure as bot.api_url."""
        return f"http://127.0.0.1:{self._port}"

    @property
    def api_fault(self) -> str | None:
        """What is wrong with the Bot API side now; one of FAULTS or None."""
        return self._fault

    @api_fault.setter
    def api_fault(self, fault: str | None) -> None:
        if fault is not None and fault not in FAULTS:
            raise ValueError(f"no such fault: {fault}; there are {', '.join(FAULTS)}")
        self._fault = fault

    @property
    def webhook(self) -> Webhook | None:
        """The webhook that is set, its secret included."""
        return self._pusher.webhook

    @property
    def pending(self) -> int:
        """pending_update_count: what is not delivered, updates in flight included."""
        return self._pusher.pending

    @property
    def in_flight(self) -> int:
        """Requests to the webhook that wait for their answer."""
        return self._pusher.in_flight

    @property
    def loaded_queues(self) -> int:
        """Serial queues being worked on; at most twice max_connections."""
        return self._pusher.loaded_queues

    def enqueue(self, update: Mapping[str, Any] | bytes | str = "message", **fields: Any) -> int:
        """Something happened to the bot: queue its update, and give its update_id.

        `update` is a type's name (`fields` as for `sample`), an update with or without its
        update_id, or the very bytes to send. Ids rise by one where none is given.
        """
        if isinstance(update, bytes):
            read = json.loads(update.decode(errors="replace"))
            return self._queue(read, update)
        update_id = fields.pop("update_id", None)
        if isinstance(update, str):
            update_id = self._next_id if update_id is None else update_id
            update = sample(update, update_id, **fields)
        elif "update_id" not in update:
            update = {"update_id": self._next_id if update_id is None else update_id, **update}
        return self._queue(update, encode_update(update))

    async def push(
        self,
        update: Mapping[str, Any] | bytes | str = "message",
        *,
        timeout: float = 10.0,
        **fields: Any,
    ) -> Delivery:
        """`enqueue` and wait until the webhook has taken it; TimeoutError after `timeout` s."""
        seen = len(self.deliveries)
        update_id = self.enqueue(update, **fields)

        def taken() -> Delivery | None:
            new = self.deliveries[seen:]
            return next((d for d in new if d.update_id == update_id and d.ok), None)

        await self.until(lambda: taken() is not None, timeout)
        delivery = taken()
        assert delivery is not None
        return delivery

    async def drained(self, timeout: float = 10.0) -> None:
        """Wait until nothing is pending; TimeoutError after `timeout` real seconds."""
        await self.until(lambda: self.pending == 0, timeout)

    async def until(self, condition: Callable[[], bool], timeout: float = 10.0) -> None:
        """Wait until `condition` holds; it is looked at whenever something happened here."""
        try:
            async with asyncio.timeout(timeout):
                while not condition():
                    if self._push_task is not None and self._push_task.done():
                        self._push_task.result()
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise TimeoutError(
                f"not within {timeout:g} s; pending {self.pending}, in flight {self.in_flight}, "
                f"last of {len(self.deliveries)} attempts: {self.deliveries[-1:]}, "
                f"dropped: {self.dropped[-3:]}"
            ) from None

    def set_webhook(self, url: str, **params: Any) -> None:
        """Set the webhook without a call, as if it had been set long ago."""
        self._set_webhook({"url": url, **params})

    def too_fast(self, method: str, params: Mapping[str, Any]) -> bool:
        """setWebhook with a URL is answered once a second."""
        if method != "setwebhook" or not params.get("url"):
            return False
        if self._now() < self._next_set:
            return True
        self._next_set = self._now() + 1
        return False

    def _now(self) -> float:
        return self._clock.monotonic() / self.time_scale

    def _queue(self, update: Mapping[str, Any], body: bytes) -> int:
        update_id, kind = int(update["update_id"]), update_type(update)
        self._next_id = update_id + 1
        self._count += 1
        if permits(self._allowed, kind):
            expires_at = self._now() + lifetime(kind)
            self._pusher.add(Waiting(self._count, update_id, body, queue_key(update), expires_at))
        else:
            self._drop(update_id, "not allowed")
        return update_id

    def _report(self) -> Report:
        return Report(
            delivered=self._delivered,
            failed=self._failed,
            executed=self.executed.append,
            dropped=self._drop,
            gone=self._gone,
        )

    def _delivered(self, delivery: Delivery) -> None:
        self.deliveries.append(delivery)
        self._changed.set()

    def _failed(self, text: str) -> None:
        self._last_error = (int(self._clock.time()), text)

    def _drop(self, update_id: int, reason: str) -> None:
        self.dropped.append((update_id, reason))
        self._changed.set()

    def _gone(self) -> None:
        self._last_error = None
        self._changed.set()

    def _endpoint(self, hook: Webhook) -> Endpoint:
        parts = urlsplit(hook.target)
        host = parts.hostname or ""
        where = parts if host not in self.resolve else urlsplit(self.resolve[host])
        tls = where.scheme == "https"
        port = where.port or (443 if tls else 80)
        return Endpoint(where.hostname or "", port, self._tls(hook) if tls else None, host)

    def _tls(self, hook: Webhook) -> ssl.SSLContext:
        if hook.certificate:
            return ssl.create_default_context(cadata=hook.certificate)
        return self._ssl or ssl.create_default_context()

    def _check_host(self, hook: Webhook) -> None:
        host = urlsplit(hook.target).hostname or ""
        if host not in self.resolve and not _is_loopback(host):
            text = "Failed to resolve host: Name or service not known"
            raise RefusalError(400, f"Bad Request: bad webhook: {text}")

    def _get_me(self, params: Mapping[str, Any]) -> tuple[Any, str | None]:
        bot_id = int(self.token.partition(":")[0])
        me = {"id": bot_id, "is_bot": True, "first_name": "Double", "username": self.username}
        return {**me, "can_join_groups": True, "supports_inline_queries": False}, None

    def _get_webhook_info(self, params: Mapping[str, Any]) -> tuple[Any, str | None]:
        hook = self.webhook or Webhook("")
        info: dict[str, Any] = {
            "url": hook.url,
            "has_custom_certificate": bool(hook.certificate),
            "pending_update_count": self.pending,
        }
        if self._last_error is not None:
            info["last_error_date"], info["last_error_message"] = self._last_error
        if hook.url:
            info["max_connections"] = hook.max_connections
            info["ip_address"] = hook.ip_address
        if self._allowed is not None:
            info["allowed_updates"] = sorted(self._allowed)
        return info, None

    def _set_webhook(self, params: Mapping[str, Any]) -> tuple[Any, str | None]:
        if not params.get("url"):
            return self._delete_webhook(params)
        hook = webhook(params, local=self.local)
        self._check_host(hook)
        hook = hook if hook.ip_address else replace(hook, ip_address=self._endpoint(hook).host)
        drop = truth(params.get("drop_pending_updates"))
        self._allowed = allowed_updates(params.get("allowed_updates"), self._allowed)
        if hook == self.webhook and not drop and not hook.certificate:
            return True, "Webhook is already set"
        self._change(hook, drop)
        return True, "Webhook was set"

    def _delete_webhook(self, params: Mapping[str, Any]) -> tuple[Any, str | None]:
        was_set = self.webhook is not None
        self._change(None, truth(params.get("drop_pending_updates")))
        return True, "Webhook was deleted" if was_set else "Webhook is already deleted"

    def _change(self, hook: Webhook | None, drop: bool) -> None:
        self._last_error = None
        self._pusher.change(hook, None if hook is None else lambda: self._endpoint(hook))
        if drop:
            self._pusher.forget(lambda waiting: False)
        self._changed.set()

    def _get_updates(self, params: Mapping[str, Any]) -> tuple[Any, str | None]:
        if self.webhook is not None:
            raise RefusalError(
                409,
                "Conflict: can't use getUpdates method while webhook is active; "
                "use deleteWebhook to delete the webhook first",
            )
        offset, limit = int(params.get("offset") or 0), int(params.get("limit") or 100)
        if offset:
            self._pusher.forget(lambda waiting: waiting.update_id >= offset)
        bodies = [waiting.body for waiting in self._pusher.waiting()[:limit]]
        return [json.loads(body.decode(errors="replace")) for body in bodies], None

    def _send_message(self, params: Mapping[str, Any]) -> tuple[Any, str | None]:
        if not params.get("chat_id"):
            raise RefusalError(400, "Bad Request: chat_id is empty")
        text = str(params.get("text") or "")
        if not text:
            raise RefusalError(400, "Bad Request: message text is empty")
        if len(text.encode("utf-16-le", "surrogatepass")) > 2 * 4096:
            raise RefusalError(400, "Bad Request: message is too long")
        self.sent.append(dict(params))
        self._changed.set()
        chat = {"id": params["chat_id"], "type": "private"}
        date = int(self._clock.time())
        return {"message_id": len(self.sent), "chat": chat, "date": date, "text": text}, None


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
