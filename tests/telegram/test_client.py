"""The Bot API client: what it asks, what it makes of answers, and what it never tells."""

import asyncio
import gzip
import logging
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from hooks import Answer, Hook, Seen, certificate, reply
from twr.double import FAULTS, TelegramDouble
from twr.edges.telegram import Me, Telegram, WebhookInfo
from twr.errors import (
    ConfigError,
    TelegramError,
    TelegramRefused,
    TelegramUnreachable,
    TokenInvalid,
)

pytestmark = pytest.mark.anyio

TOKEN = "7000000001:AAtokenAAtokenAAtokenAAtokenAAtoken"
OK = b'{"ok":true,"result":{"url":"","pending_update_count":0,"has_custom_certificate":false}}'


@pytest.fixture
async def double() -> AsyncIterator[TelegramDouble]:
    async with TelegramDouble(token=TOKEN, resolve={"x.example": "http://127.0.0.1:1"}) as double:
        yield double


@pytest.fixture
async def bot(double: TelegramDouble) -> AsyncIterator[Telegram]:
    async with Telegram(double.api_url, TOKEN, timeout=5) as bot:
        yield bot


async def failure(api_url: str, proxy: str | None = None, token: str = TOKEN) -> TelegramError:
    """The error of a getWebhookInfo that has to fail."""
    async with Telegram(api_url, token, timeout=0.5, proxy=proxy) as bot:
        with pytest.raises(TelegramError) as caught:
            await bot.get_webhook_info()
    return caught.value


async def failure_with(answer: bytes | Answer) -> TelegramError:
    """The error that an answer of a server leads to."""
    async with Hook(answer=answer) as server:
        return await failure(f"http://127.0.0.1:{server.port}")


async def test_get_me(bot: Telegram) -> None:
    """getMe gives id and name."""
    assert await bot.get_me() == Me(id=7000000001, username="double_bot")


async def test_set_webhook(bot: Telegram, double: TelegramDouble) -> None:
    """setWebhook sends all settings, an empty list of types included."""
    word = await bot.set_webhook(
        "https://x.example/hook", secret_token="s3cret", allowed_updates=(), max_connections=7
    )
    assert word == "Webhook was set"
    assert double.calls == [
        (
            "setWebhook",
            {
                "url": "https://x.example/hook",
                "secret_token": "s3cret",
                "allowed_updates": [],
                "max_connections": 7,
                "drop_pending_updates": False,
            },
        )
    ]


async def test_delete_webhook(bot: Telegram, double: TelegramDouble) -> None:
    """deleteWebhook says whether pending updates are dropped, and gives Telegram's word."""
    assert await bot.delete_webhook(drop_pending_updates=True) == "Webhook is already deleted"
    assert double.calls == [("deleteWebhook", {"drop_pending_updates": True})]


async def test_send_message(bot: Telegram, double: TelegramDouble) -> None:
    """A message goes to its chat, and to its topic where one is given."""
    await bot.send_message(-100, "one")
    await bot.send_message("@channel", "two", message_thread_id=7)
    preview = {"link_preview_options": {"is_disabled": True}}
    assert double.sent == [
        {"chat_id": -100, "text": "one", **preview},
        {"chat_id": "@channel", "text": "two", "message_thread_id": 7, **preview},
    ]


async def test_info_without_a_webhook(bot: Telegram) -> None:
    """Fields that Telegram leaves out are None."""
    assert await bot.get_webhook_info() == WebhookInfo(url="", pending_update_count=0)


async def test_info_with_every_field() -> None:
    """Every field of getWebhookInfo is read."""
    body = (
        b'{"ok":true,"result":{"url":"https://x.example/","has_custom_certificate":true,'
        b'"pending_update_count":3,"ip_address":"192.0.2.1","last_error_date":1793000000,'
        b'"last_error_message":"SSL error {x}","last_synchronization_error_date":1793000001,'
        b'"max_connections":40,"allowed_updates":["message"],"new_field":[]}}'
    )
    async with (
        Hook(answer=reply(body=body, Content_Type="application/json")) as server,
        Telegram(f"http://127.0.0.1:{server.port}/prefix/", TOKEN) as bot,
    ):
        assert await bot.get_webhook_info() == WebhookInfo(
            url="https://x.example/",
            pending_update_count=3,
            has_custom_certificate=True,
            ip_address="192.0.2.1",
            last_error_date=1793000000,
            last_error_message="SSL error {x}",
            last_synchronization_error_date=1793000001,
            max_connections=40,
            allowed_updates=("message",),
        )
        path = f"POST /prefix/bot{TOKEN}/getWebhookInfo HTTP/1.1\r\n".encode()
        assert server.seen[0].head.startswith(path)


async def test_optional_fields_of_the_wrong_kind_are_absent() -> None:
    """A field that twr can do without spoils nothing when it is not what it should be."""
    body = (
        b'{"ok":true,"result":{"url":"","pending_update_count":0,"last_error_date":"now",'
        b'"allowed_updates":{},"max_connections":true}}'
    )
    async with (
        Hook(answer=reply(body=body)) as server,
        Telegram(f"http://127.0.0.1:{server.port}", TOKEN) as bot,
    ):
        assert await bot.get_webhook_info() == WebhookInfo(url="", pending_update_count=0)


@pytest.mark.parametrize(
    ("fault", "kind", "text"),
    [
        ("400", TelegramRefused, "Telegram refused: 400 Bad Request"),
        (
            "401",
            TokenInvalid,
            "Telegram refused: 401 Unauthorized (is the bot token right?)",
        ),
        ("403", TelegramRefused, "Telegram refused: 403 Forbidden"),
        ("404", TokenInvalid, "Telegram refused: 404 Not Found (is the bot token right?)"),
        ("429", TelegramRefused, "Telegram refused: 429 Too Many Requests: retry after 3"),
        ("500", TelegramUnreachable, "SERVER answers 500"),
        ("502", TelegramUnreachable, "SERVER answers 502"),
        (
            "html",
            TelegramUnreachable,
            "SERVER answers 200 with HTML: is bot.api_url a Bot API server?",
        ),
        (
            "empty",
            TelegramUnreachable,
            "SERVER answers 200 with something that is not JSON: is bot.api_url a Bot API server?",
        ),
        (
            "charset",
            TelegramUnreachable,
            "SERVER answers 200 with something that is not JSON: is bot.api_url a Bot API server?",
        ),
        ("array", TelegramUnreachable, "SERVER answers 200 with JSON that is no Bot API answer"),
        (
            "shape",
            TelegramUnreachable,
            "the answer to getWebhookInfo has the wrong shape: no object",
        ),
        (
            "redirect",
            TelegramUnreachable,
            "SERVER answers 302, a redirect, which is not followed: is bot.api_url right?",
        ),
        ("hang", TelegramUnreachable, "SERVER gives no answer within 0.5 s"),
        ("endless", TelegramUnreachable, "SERVER gives no answer within 0.5 s"),
        ("huge", TelegramUnreachable, "SERVER sends an answer of more than 1048576 bytes"),
        (
            "close",
            TelegramUnreachable,
            "SERVER closes the connection without answering",
        ),
    ],
)
async def test_faults(
    double: TelegramDouble, fault: str, kind: type[TelegramError], text: str
) -> None:
    """Each fault of the Bot API becomes one error of ours, in words."""
    double.api_fault = fault
    error = await failure(double.api_url)
    assert (type(error), str(error)) == (kind, text.replace("SERVER", double.api_url[7:]))


async def test_retry_after_is_kept(double: TelegramDouble) -> None:
    """A 429 carries the seconds that Telegram asks for."""
    double.api_fault = "429"
    error = await failure(double.api_url)
    assert isinstance(error, TelegramRefused)
    assert (error.code, error.retry_after) == (429, 3)


async def test_wrong_token(double: TelegramDouble) -> None:
    """A token that the server does not know is told as such."""
    assert type(await failure(double.api_url, token="1:other")) is TokenInvalid
    assert type(await failure(double.api_url, token="no/../colon?")) is TokenInvalid


async def endless_headers(seen: Seen) -> bytes:
    return b"HTTP/1.1 200 OK\r\n" + b"X-Filler: 1234567890\r\n" * 100_000


async def hang(seen: Seen) -> bytes:
    await asyncio.Event().wait()
    return b""


HOSTILE: dict[str, tuple[bytes | Answer, str]] = {
    "garbage": (b"\x00\xff\x16 no HTTP\r\n\r\n", "does not answer in HTTP"),
    "header without end": (endless_headers, "does not answer in HTTP"),
    "header too long": (
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * 2_000_000 + b"\r\n\r\n",
        "does not answer in HTTP",
    ),
    "body is short": (
        b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\nConnection: close\r\n\r\n{}",
        "gives no answer within 0.5 s",
    ),
    "endless chunks": (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"4000\r\n" + b" " * 0x4000,
        "gives no answer within 0.5 s",
    ),
    "bomb": (
        reply(body=gzip.compress(b" " * 50_000_000), Content_Encoding="gzip"),
        "with something that is not JSON",
    ),
    "deep": (reply(body=b"[" * 500_000), "with something that is not JSON"),
    "long number": (reply(body=b"9" * 900_000), "with something that is not JSON"),
    "utf-16": (reply(body=OK.decode().encode("utf-16")), "with something that is not JSON"),
    "bad utf-8": (reply(body=b'{"ok":true,"result":"\xff"}'), "with something that is not JSON"),
    "null": (reply(body=b"null"), "with something that is not JSON"),
    "text": (reply(body=b'"ok"'), "with JSON that is no Bot API answer"),
    "ok is a number": (reply(body=b'{"ok":1,"result":{}}'), "with JSON that is no Bot API answer"),
    "url is missing": (
        reply(body=b'{"ok":true,"result":{"pending_update_count":0}}'),
        "url is missing or no str",
    ),
    "pending is true": (
        reply(body=b'{"ok":true,"result":{"url":"","pending_update_count":true}}'),
        "pending_update_count is missing or no int",
    ),
    "ok of a broken server": (reply(503, "Away", OK), "answers 503"),
    "no answer": (hang, "gives no answer within 0.5 s"),
    "closed": (b"", "closes the connection without answering"),
}


@pytest.mark.parametrize("name", HOSTILE)
async def test_hostile_answers(name: str) -> None:
    """No answer whatever does more than make a TelegramUnreachable, within the timeout."""
    answer, text = HOSTILE[name]
    error = await failure_with(answer)
    assert type(error) is TelegramUnreachable
    assert text in str(error)


async def test_answer_that_breaks_off() -> None:
    """A connection that ends in the middle of an answer is told as such."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n{}")
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        assert str(await failure(f"http://127.0.0.1:{port}")) == (
            f"the answer of 127.0.0.1:{port} breaks off"
        )


async def test_redirects_are_not_followed() -> None:
    """The place that a redirect names is never asked: it would learn the token."""
    async with Hook() as other:
        await failure_with(reply(307, "Go", Location=other.url))
        assert other.seen == []


async def test_nothing_listens() -> None:
    """A refused connection is told with the system's word for it."""
    async with Hook() as server:
        address = f"127.0.0.1:{server.port}"
    assert str(await failure(f"http://{address}")) == (
        f"no connection to {address}: connection refused"
    )


@pytest.mark.parametrize("api_url", ["ftp://x.example", "http://", "nonsense"])
async def test_unusable_api_url(api_url: str) -> None:
    """A bot.api_url that is no HTTP URL fails as a call, not as a crash."""
    assert type(await failure(api_url)) is TelegramUnreachable


async def test_untrusted_certificate(tmp_path: Path) -> None:
    """A certificate that nobody vouches for ends the call before the token is sent."""
    context, _ = certificate(tmp_path, "localhost")
    async with Hook(tls=context) as server:
        error = await failure(f"https://localhost:{server.port}")
        assert str(error) == (
            f"the certificate of localhost:{server.port} is not accepted: self-signed certificate"
        )
        assert server.seen == []


async def test_no_tls_there() -> None:
    """TLS with a server that has none is told as such."""
    async with Hook() as server:
        address = f"127.0.0.1:{server.port}"

        async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            await reader.read()
            writer.close()

        async with await asyncio.start_server(greet, "127.0.0.1", 0) as plain:
            address = f"127.0.0.1:{plain.sockets[0].getsockname()[1]}"
            error = await failure(f"https://{address}")
    assert str(error).startswith(f"no TLS connection to {address}: ")


class Relay:
    """A proxy: speaks its own protocol first, then passes bytes to where it was asked to go."""

    def __init__(self, greet: Callable[..., Awaitable[tuple[str, int] | None]]) -> None:
        self.greet = greet
        self.asked: list[tuple[str, int]] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        target = await self.greet(reader, writer)
        if target is None:
            writer.close()
            return
        self.asked.append(target)
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", target[1])
        await asyncio.gather(_pipe(reader, far_writer), _pipe(far_reader, writer))


async def _pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.close()


async def socks5(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> tuple[str, int] | None:
    """SOCKS 5 with user and password (RFC 1928, RFC 1929)."""
    methods = (await reader.readexactly(2))[1]
    assert b"\x02" in await reader.readexactly(methods)
    writer.write(b"\x05\x02")
    user = await reader.readexactly((await reader.readexactly(2))[1])
    password = await reader.readexactly((await reader.readexactly(1))[0])
    if (user, password) != (b"user", b"p@ss"):
        writer.write(b"\x01\x01")
        return None
    writer.write(b"\x01\x00")
    assert (await reader.readexactly(4))[3] == 3
    host = await reader.readexactly((await reader.readexactly(1))[0])
    port = int.from_bytes(await reader.readexactly(2), "big")
    writer.write(b"\x05\x00\x00\x01\x7f\x00\x00\x01\x00\x00")
    return host.decode(), port


@pytest.mark.parametrize("scheme", ["socks5", "socks5h", "socks"])
async def test_socks_proxy(double: TelegramDouble, scheme: str) -> None:
    """A socks proxy is used, and it is the proxy that looks the name up."""
    relay = Relay(socks5)
    port = int(double.api_url.rpartition(":")[2])
    async with await asyncio.start_server(relay.serve, "127.0.0.1", 0) as server:
        proxy = f"{scheme}://user:p%40ss@127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with Telegram(f"http://api.example:{port}", TOKEN, proxy=proxy) as bot:
            assert (await bot.get_me()).username == "double_bot"
    assert relay.asked == [("api.example", port)]


async def test_socks_proxy_that_refuses() -> None:
    """A socks proxy that refuses user and password is told as such, without them."""
    async with await asyncio.start_server(Relay(socks5).serve, "127.0.0.1", 0) as server:
        proxy = f"socks5://user:wrong@127.0.0.1:{server.sockets[0].getsockname()[1]}"
        error = await failure("http://api.example", proxy)
    assert str(error) == "api.example is not reached: the socks proxy refuses"


async def test_http_proxy(double: TelegramDouble) -> None:
    """An http proxy gets the request with its own credentials."""

    async def forward(seen: Seen) -> bytes:
        assert seen.head.startswith(f"POST {double.api_url}/bot".encode())
        assert b"Proxy-Authorization: Basic dXNlcjpwQHNz\r\n" in seen.head
        return reply(body=OK, Content_Type="application/json")

    async with (
        Hook(answer=forward) as server,
        Telegram(double.api_url, TOKEN, proxy=f"http://user:p%40ss@127.0.0.1:{server.port}") as bot,
    ):
        assert (await bot.get_webhook_info()).url == ""


async def test_http_proxy_tunnels_tls(tmp_path: Path) -> None:
    """An https Bot API goes through CONNECT; a proxy that refuses is told with its status."""
    async with Hook(answer=reply(407, "Proxy Authentication Required")) as server:
        error = await failure("https://api.example", f"http://127.0.0.1:{server.port}")
        assert server.seen[0].head.startswith(b"CONNECT api.example:443 HTTP/1.1\r\n")
    assert str(error) == "api.example is not reached: the proxy answers 407"


@pytest.mark.parametrize(
    ("scheme", "text"),
    [
        ("http", "api.example is not reached: no connection to the proxy: connection refused"),
        ("socks5", "api.example is not reached: no connection to the socks proxy"),
    ],
)
async def test_proxy_away(scheme: str, text: str) -> None:
    """A proxy that is not there is told as the proxy's fault."""
    async with Hook() as server:
        proxy = f"{scheme}://user:p4ss@127.0.0.1:{server.port}"
    assert str(await failure("https://api.example", proxy)) == text


@pytest.mark.parametrize("proxy", ["ftp://user:p4ss@x", "http://user:p4ss@:1", "http://x:port"])
def test_proxy_that_is_none(proxy: str) -> None:
    """A proxy URL of the wrong form is a configuration error that does not repeat it."""
    with pytest.raises(ConfigError) as caught:
        Telegram("https://api.example", TOKEN, proxy=proxy)
    assert str(caught.value).startswith("bot.proxy: ")
    assert "p4ss" not in str(caught.value)


async def test_environment_proxies_are_ignored(
    double: TelegramDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the configured proxy counts."""
    for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    async with Telegram(double.api_url, TOKEN) as bot:
        assert (await bot.get_me()).id == 7000000001


async def test_text_from_outside_forges_no_line() -> None:
    """A description is quoted on one line, cut, and never holds the token."""
    description = f"a\\nALERT firing x {TOKEN} {TOKEN.partition(':')[2]}" + "y" * 1000
    body = f'{{"ok":false,"error_code":400,"description":"{description}"}}'.encode()
    error = await failure_with(reply(400, "Bad Request", body))
    assert isinstance(error, TelegramRefused)
    assert error.description.startswith("a\\x0aALERT firing x *** ***yyy")
    assert len(error.description) <= 303


async def test_token_is_in_no_error(
    double: TelegramDouble, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither an error, its chain, a traceback, a repr nor a log line holds the token."""
    caplog.set_level(logging.DEBUG)
    errors = []
    for fault in FAULTS:
        double.api_fault = fault
        errors.append(await failure(double.api_url))
    for answer, _ in HOSTILE.values():
        errors.append(await failure_with(answer))
    errors += [
        await failure(url) for url in ("http://127.0.0.1:1", "nonsense", "https://127.0.0.1:1")
    ]
    errors.append(await failure("https://api.example", "http://127.0.0.1:1"))
    errors.append(await failure("https://api.example", "socks5://127.0.0.1:1"))
    told = [caplog.text, repr(Telegram(double.api_url, TOKEN))]
    for error in errors:
        assert (error.__cause__, error.__context__) == (None, None)
        told += [repr(error), str(error), *traceback.format_exception(error)]
    assert [text for text in told if TOKEN.partition(":")[2] in text] == []


async def test_client_is_used_inside_its_context() -> None:
    """Outside `async with` there is no session, and the client says so."""
    with pytest.raises(RuntimeError, match="outside its `async with`"):
        await Telegram("http://127.0.0.1:1", TOKEN).get_me()
