"""The Bot API, as far as twr needs it: the webhook's state and settings, our own name, messages.

The bot token is part of every URL, so no text of an HTTP library is ever passed on: each
failure is told in words of our own, and raised outside the handler that caught it, so that
no chained exception carries the URL either.
"""

import asyncio
import json
import ssl
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, TypeVar
from urllib.parse import quote

import aiohttp
from yarl import URL

from twr.core.masking import Mask
from twr.core.text import clip, escape
from twr.core.webhook_info import MAX_URL
from twr.edges.telegram.proxy import Proxy, proxy_failure, read_proxy, system_reason
from twr.errors import ConfigError, Problem, TelegramRefused, TelegramUnreachable, TokenInvalid

TIMEOUT = 10.0
"""Seconds for one call, from the name lookup to the last byte of the answer."""

MAX_ANSWER = 1024 * 1024
"""Bytes of an answer that are read; the methods used here answer with under 16 KiB."""

_MAX_DESCRIPTION = 300

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Me:
    """Who the bot is (getMe). `username` is without the @."""

    id: int
    username: str | None


@dataclass(frozen=True, slots=True)
class WebhookInfo:
    """What Telegram holds about the webhook (getWebhookInfo).

    `url` is empty when none is set, and may hold a secret: it is for comparing, and masked where
    it is shown. Dates are unix seconds. `allowed_updates` is None when it
    is Telegram's default. `last_error_*` is never cleared by a success, and
    `pending_update_count` includes the updates in flight.
    """

    url: str
    pending_update_count: int
    has_custom_certificate: bool = False
    ip_address: str | None = None
    last_error_date: int | None = None
    last_error_message: str | None = None
    last_synchronization_error_date: int | None = None
    max_connections: int | None = None
    allowed_updates: tuple[str, ...] | None = None


class Telegram:
    """A Bot API client for one bot; an async context manager that owns its HTTP session.

    `api_url` is the server without the token, `proxy` the URL of an http or socks proxy for it
    (ConfigError where it is none), `timeout` seconds for each call. No text of an answer holds
    the token, or what `mask` hides besides.

    Every call raises TelegramUnreachable when there is no usable answer, TokenInvalid when the
    token is not right, and TelegramRefused for any other `ok: false`. Nothing is retried, and
    redirects are not followed.
    """

    def __init__(
        self,
        api_url: str,
        token: str,
        *,
        proxy: str | None = None,
        timeout: float = TIMEOUT,
        max_answer: int = MAX_ANSWER,
        mask: Callable[[], Mask] = Mask,
    ) -> None:
        self._base = f"{api_url.rstrip('/')}/bot{quote(token, safe=':')}/"
        self._server = server_name(api_url)
        self._token = Mask((token, token.partition(":")[2], quote(token, safe=":")))
        self._mask = mask
        self._proxy = None if proxy is None else _proxy(proxy)
        self._timeout = timeout
        self._max_answer = max_answer
        self._session: aiohttp.ClientSession | None = None

    def __repr__(self) -> str:
        return f"<Telegram {self._server}>"

    async def __aenter__(self) -> Self:
        proxy = self._proxy
        connector = proxy.connector() if proxy else aiohttp.TCPConnector(limit=8)
        self._session = aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"Accept-Encoding": "identity"},
            auto_decompress=False,
            timeout=aiohttp.ClientTimeout(total=self._timeout),
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def get_me(self) -> Me:
        """Who this token belongs to."""
        result = _object("getMe", (await self._call("getMe"))[0])
        return Me(
            id=_required("getMe", result, "id", int),
            username=_optional(result, "username", str),
        )

    async def get_webhook_info(self) -> WebhookInfo:
        """The webhook as Telegram sees it now."""
        method = "getWebhookInfo"
        result = _object(method, (await self._call(method))[0])
        return WebhookInfo(
            url=self._url(_required(method, result, "url", str)),
            pending_update_count=_required(method, result, "pending_update_count", int),
            has_custom_certificate=result.get("has_custom_certificate") is True,
            ip_address=self._told(result, "ip_address"),
            last_error_date=_optional(result, "last_error_date", int),
            last_error_message=self._told(result, "last_error_message"),
            last_synchronization_error_date=_optional(
                result, "last_synchronization_error_date", int
            ),
            max_connections=_optional(result, "max_connections", int),
            allowed_updates=_names(result.get("allowed_updates")),
        )

    async def set_webhook(
        self,
        url: str,
        *,
        secret_token: str,
        allowed_updates: Sequence[str],
        max_connections: int,
        drop_pending_updates: bool = False,
    ) -> str:
        """Register the webhook; gives Telegram's own word for what happened.

        An empty `allowed_updates` is Telegram's default (a missing one would keep the old).
        """
        _, description = await self._call(
            "setWebhook",
            {
                "url": url,
                "secret_token": secret_token,
                "allowed_updates": list(allowed_updates),
                "max_connections": max_connections,
                "drop_pending_updates": drop_pending_updates,
            },
        )
        return description or "Webhook was set"

    async def delete_webhook(self, *, drop_pending_updates: bool = False) -> str:
        """Remove the webhook; gives Telegram's own word for what happened."""
        _, description = await self._call(
            "deleteWebhook", {"drop_pending_updates": drop_pending_updates}
        )
        return description or "Webhook was deleted"

    async def send_message(
        self, chat_id: int | str, text: str, *, message_thread_id: int | None = None
    ) -> None:
        """Send plain text of up to 4096 UTF-16 units, with no link preview."""
        params: dict[str, Any] = {
            "chat_id": chat_id,
            "text": text,
            "link_preview_options": {"is_disabled": True},
        }
        if message_thread_id is not None:
            params["message_thread_id"] = message_thread_id
        await self._call("sendMessage", params)

    async def _call(self, method: str, params: Mapping[str, Any] | None = None) -> tuple[Any, str]:
        """The `result` and the `description` of an answer with ok: true."""
        if self._session is None:
            raise RuntimeError("the client is used outside its `async with`")
        try:
            async with asyncio.timeout(self._timeout):
                status, body = await self._post(self._session, method, params or {})
        except TelegramUnreachable as error:
            problem = str(error)
        except Exception as error:  # whatever it is, its text may hold the URL
            problem = _failure(error, self._server, self._timeout)
        else:
            return self._read(status, body)
        raise TelegramUnreachable(problem)

    async def _post(
        self, session: aiohttp.ClientSession, method: str, params: Mapping[str, Any]
    ) -> tuple[int, bytes]:
        proxy_options = self._proxy.request_options() if self._proxy else {}
        async with session.post(
            URL(self._base + method, encoded=True),
            json=params,
            allow_redirects=False,
            **proxy_options,
        ) as response:
            if 300 <= response.status < 400:
                raise TelegramUnreachable(self._redirect(response))
            return response.status, await self._body(response)

    async def _body(self, response: aiohttp.ClientResponse) -> bytes:
        body = bytearray()
        async for chunk in response.content.iter_any():
            body += chunk
            if len(body) > self._max_answer:
                raise TelegramUnreachable(
                    f"{self._server} sends an answer of more than {self._max_answer} bytes"
                )
        return bytes(body)

    def _redirect(self, response: aiohttp.ClientResponse) -> str:
        return (
            f"{self._server} answers {response.status}, a redirect, which is not followed: "
            "is bot.api_url right?"
        )

    def _read(self, status: int, body: bytes) -> tuple[Any, str]:
        answer = _decode(body)
        if status >= 500 or not isinstance(answer, dict) or not isinstance(answer.get("ok"), bool):
            raise TelegramUnreachable(self._unusable(status, body, answer))
        description = self._safe(answer.get("description"))
        if answer["ok"]:
            return answer.get("result"), description
        raise _refusal(status, answer, description)

    def _unusable(self, status: int, body: bytes, answer: object) -> str:
        if status >= 500:
            return f"{self._server} answers {status}"
        if answer is not None:
            return f"{self._server} answers {status} with JSON that is no Bot API answer"
        kind = "HTML" if body.lstrip()[:1] == b"<" else "something that is not JSON"
        return f"{self._server} answers {status} with {kind}: is bot.api_url a Bot API server?"

    def _safe(self, text: object) -> str:
        if not isinstance(text, str):
            return ""
        return self._token.quoted(self._mask()(text, cut=True), _MAX_DESCRIPTION)

    def _url(self, url: str) -> str:
        """As it came, to be compared; one that is too long to be kept is masked before it is cut,
        or the rest of a secret would no longer be known for one."""
        if len(url) <= MAX_URL:
            return url
        return clip(self._token(self._mask()(url)), MAX_URL)

    def _told(self, result: Mapping[str, Any], name: str) -> str | None:
        """A text that Telegram has from elsewhere, and may have cut."""
        text = _optional(result, name, str)
        return None if text is None else self._token(self._mask()(text, cut=True), cut=True)


def server_name(api_url: str) -> str:
    """Host and port of `api_url` for messages: no path, no user, no password."""
    try:
        url = URL(api_url)
    except ValueError:
        return "bot.api_url"
    if not url.host:
        return "bot.api_url"
    return escape(url.host if url.is_default_port() else f"{url.host}:{url.port}")


def _proxy(url: str) -> Proxy:
    try:
        return read_proxy(url)
    except ValueError as error:
        raise ConfigError([Problem("bot.proxy", 0, str(error))]) from None


def _decode(body: bytes) -> object:
    """The JSON value in `body`, None where there is none; the charset is always UTF-8."""
    try:
        return json.loads(body.decode("utf-8-sig"))
    except (ValueError, RecursionError):
        return None


def _refusal(status: int, answer: Mapping[str, Any], description: str) -> TelegramRefused:
    code = answer.get("error_code")
    code = code if type(code) is int else status
    parameters = answer.get("parameters")
    retry_after = parameters.get("retry_after") if isinstance(parameters, dict) else None
    seconds = max(0, retry_after) if type(retry_after) is int else None
    description = description or "without a reason"
    if code in (401, 404):
        return TokenInvalid(code, f"{description} (is the bot token right?)", seconds)
    return TelegramRefused(code, description, seconds)


def _failure(error: Exception, server: str, timeout: float) -> str:
    """What went wrong on the way to `server`, with nothing of the URL but the host."""
    through_proxy = proxy_failure(error)
    if through_proxy is not None:
        return f"{server} is not reached: {through_proxy}"
    match error:
        case TimeoutError():
            return f"{server} gives no answer within {timeout:g} s"
        case aiohttp.ClientConnectorCertificateError(certificate_error=ssl.SSLError() as reason):
            return f"the certificate of {server} is not accepted: {_tls(reason)}"
        case aiohttp.ClientConnectorError():
            return _no_connection(error, server)
        case aiohttp.ServerDisconnectedError():
            return f"{server} closes the connection without answering"
        case aiohttp.ClientPayloadError():
            return f"the answer of {server} breaks off"
        case aiohttp.InvalidURL():
            return "bot.api_url is no usable http or https URL"
        case aiohttp.ClientResponseError():
            return f"{server} does not answer in HTTP"
    return f"{server} is not reached ({type(error).__name__})"


def _no_connection(error: aiohttp.ClientConnectorError, server: str) -> str:
    match error:
        case aiohttp.ClientConnectorDNSError():
            return f"the name {server} does not resolve"
        case aiohttp.ClientConnectorSSLError(os_error=ssl.SSLError() as reason):
            return f"no TLS connection to {server}: {_tls(reason)}"
    return f"no connection to {server}: {system_reason(error.os_error)}"


def _tls(error: ssl.SSLError) -> str:
    detail = getattr(error, "verify_message", None) or error.reason or "handshake failed"
    return escape(str(detail).replace("_", " ").lower())


def _object(method: str, result: object) -> Mapping[str, Any]:
    if not isinstance(result, dict):
        raise TelegramUnreachable(f"the answer to {method} has the wrong shape: no object")
    return result


def _required(method: str, result: Mapping[str, Any], name: str, kind: type[T]) -> T:
    value = _optional(result, name, kind)
    if value is None:
        raise TelegramUnreachable(
            f"the answer to {method} has the wrong shape: {name} is missing or no {kind.__name__}"
        )
    return value


def _optional(result: Mapping[str, Any], name: str, kind: type[T]) -> T | None:
    value = result.get(name)
    return value if type(value) is kind else None


def _names(value: object) -> tuple[str, ...] | None:
    if not isinstance(value, list):
        return None
    return tuple(name for name in value if isinstance(name, str))
