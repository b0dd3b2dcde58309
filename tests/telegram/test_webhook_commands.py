"""`twr webhook info|set|delete` as real processes, against the double and a real webhook."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import twr
from hooks import Hook, Seen, reply
from leaks import leaks
from twr.core.webhook_url import is_official, refusal
from twr.double import RefusalError, TelegramDouble
from twr.edges.front import Answer
from twr.edges.telegram import WebhookInfo
from twr.services.webhook import front_warning, lines

pytestmark = pytest.mark.anyio

SECRET = "hook-secret_1"
ROUTES = """
routes:
  - name: shop
    target_url: http://127.0.0.1:1/
    signing_secret_env: SHOP_SECRET
    match: {update_types: [message, chat_member]}
  - name: buttons
    target_url: http://127.0.0.1:1/
    signing_secret_env: SHOP_SECRET
    match: {callback_prefixes: ["order:"]}
"""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended."""

    code: int | None
    out: str
    err: str


@dataclass
class Setup:
    """A configuration file for the double, and the way to run a command with it."""

    directory: Path
    double: TelegramDouble
    token: str | None = None

    def write(self, webhook_url: str | None, api_url: str | None = None) -> Path:
        """The configuration with this public URL."""
        file = self.directory / "twr.yaml"
        bot = [f"bot:\n  api_url: {api_url or self.double.api_url}\n  max_connections: 17\n"]
        if webhook_url is not None:
            bot.append(f"  webhook_url: {webhook_url}\n")
        file.write_text("".join(bot) + ROUTES)
        return file

    async def run(self, *words: str) -> Ended:
        """`twr webhook WORDS`; what it prints holds neither the token nor the secret."""
        environ = {**os.environ, "PYTHONPATH": str(Path(twr.__file__).parents[1])}
        environ |= {
            "TELEGRAM_WEBHOOK_SECRET": SECRET,
            "TWR_CONFIG": str(self.directory / "twr.yaml"),
        }
        token = self.double.token if self.token is None else self.token
        environ |= {"BOT_TOKEN": token} if token else {}
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "twr", "webhook", *words),
            env=environ,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await process.communicate()
        ended = Ended(process.returncode, out.decode(), err.decode())
        assert self.double.token.partition(":")[2] not in ended.out + ended.err
        assert SECRET not in ended.out + ended.err
        assert "Traceback" not in ended.err
        return ended


async def as_twr(seen: Seen) -> bytes:
    """Answers as twr's ingress does."""
    if f"X-Telegram-Bot-Api-Secret-Token: {SECRET}\r\n".encode() in seen.head:
        return reply(202, "Accepted", b'{"status":"queued","deliveries":1}')
    return reply(401, "Unauthorized", b'{"status":"unauthorized"}')


@pytest.fixture
async def setup(tmp_path: Path) -> AsyncIterator[Setup]:
    async with TelegramDouble(time_scale=0.02) as double:
        yield Setup(tmp_path, double)


@pytest.fixture
async def panel() -> AsyncIterator[Hook]:
    """The new public address, with twr behind it."""
    async with Hook(answer=as_twr) as hook:
        yield hook


async def test_domain_move(setup: Setup, panel: Hook) -> None:
    """The old address redirects and six updates wait; `set` registers the new one and they flow."""
    async with Hook(answer=reply(301, "Moved Permanently")) as old:
        setup.double.set_webhook(old.url, secret_token=SECRET)
        for user in range(6):
            setup.double.enqueue(user_id=user + 1)
        await setup.double.until(lambda: len(setup.double.deliveries) == 1)
        setup.write(panel.url)
        ended = await setup.run("set")
    printed = ended.out.splitlines()
    assert (ended.code, ended.err) == (0, "")
    assert printed[0] == f"before: {old.url}  pending 6"
    assert printed[1].endswith('ago: "Wrong response from the webhook: 301 Moved Permanently"')
    assert "Telegram: Webhook was set" in printed
    assert any(line.startswith(f"after:  {panel.url}  pending ") for line in printed)
    assert printed[-1].startswith("pending has fallen from 6 to 0 in ")
    assert setup.double.pending == 0
    assert [d.status for d in setup.double.deliveries if d.url == panel.url] == [202] * 6


async def test_what_is_registered(setup: Setup, panel: Hook) -> None:
    """URL, secret, the types that the routes need and max_connections; nothing is dropped."""
    setup.write(panel.url)
    ended = await setup.run("set")
    assert ended.code == 0
    assert ended.out.splitlines()[-1] == "nothing is pending"
    assert dict(setup.double.calls)["setWebhook"] == {
        "url": panel.url,
        "secret_token": SECRET,
        "allowed_updates": ["message", "callback_query", "chat_member"],
        "max_connections": 17,
        "drop_pending_updates": False,
    }


@pytest.mark.parametrize("length", [60, 2047, 2060, 2090])
async def test_a_token_in_the_url_is_not_shown(setup: Setup, length: int) -> None:
    """Neither whole nor a part, wherever a long URL is cut."""
    token, start = setup.double.token, "http://127.0.0.1:9/"
    setup.double.set_webhook(f"{start}{'.' * (length - len(start) - len(token))}{token}...")
    setup.write("https://other.example/")
    for words in (("info",), ("info", "--json")):
        ended = await setup.run(*words)
        assert (ended.code, start in ended.out) == (0, True)
        assert leaks(ended.out + ended.err, [token]) == []


async def test_drop_pending_is_asked_for(setup: Setup, panel: Hook) -> None:
    """Only with --drop-pending are the waiting updates thrown away."""
    setup.double.enqueue()
    setup.write(panel.url)
    ended = await setup.run("set", "--drop-pending")
    assert ended.code == 0
    assert dict(setup.double.calls)["setWebhook"]["drop_pending_updates"] is True
    assert (setup.double.pending, setup.double.deliveries) == (0, [])


async def test_updates_that_do_not_flow(setup: Setup, panel: Hook) -> None:
    """When nothing is delivered in the given time, the command says why and exits 1."""

    async def answer(seen: Seen) -> bytes:
        return await as_twr(seen) if seen.body == b"{}" else reply(502, "Bad Gateway")

    panel.answer = answer
    setup.double.enqueue()
    setup.write(panel.url)
    ended = await setup.run("set", "--wait", "1s")
    assert ended.code == 1
    assert ended.out.splitlines()[-1] == (
        "pending is 1 after 1 s, and has not fallen; "
        'Telegram says: "Wrong response from the webhook: 502 Bad Gateway"'
    )


async def test_no_wait(setup: Setup, panel: Hook) -> None:
    """With --no-wait the command ends as soon as the webhook is set."""
    panel.answer = reply(500, "Oops")
    setup.double.enqueue()
    setup.write(panel.url)
    ended = await setup.run("set", "--no-wait")
    assert ended.code == 0
    assert "pending is" not in ended.out
    assert [method for method, _ in setup.double.calls] == [
        "getWebhookInfo",
        "setWebhook",
        "getWebhookInfo",
    ]


@pytest.mark.parametrize(
    ("answer", "warning"),
    [
        (
            reply(301, "Moved", Location="https://www.panel.example/hook"),
            " answers 301, a redirect to www.panel.example; Telegram follows none",
        ),
        (reply(308, "Moved", Location="/hook/"), " answers 308, a redirect to the same host;"),
        (reply(200, "OK", b"{}"), " takes a wrong secret (200)"),
        (reply(502, "Bad Gateway"), " answers 502, but not as twr does"),
        (reply(401, "Unauthorized", b"login!"), " answers 401, but not as twr does"),
        (b"", " is not reached from here: no usable answer (ServerDisconnectedError)"),
    ],
)
async def test_front_that_is_not_right(
    setup: Setup, panel: Hook, answer: bytes, warning: str
) -> None:
    """A public URL that does not answer as twr would is a warning; the webhook is set anyway."""
    panel.answer = answer
    setup.write(panel.url)
    ended = await setup.run("set", "--no-wait")
    assert ended.code == 0
    assert f"warning: {panel.url}{warning}" in ended.out
    assert setup.double.webhook is not None
    assert b"POST /hook HTTP/1.1\r\n" in panel.seen[0].head
    assert SECRET.encode() not in panel.seen[0].head


async def test_front_that_is_away(setup: Setup, panel: Hook) -> None:
    """A public URL that nobody listens on is a warning."""
    async with Hook() as hook:
        url = hook.url
    setup.write(url)
    ended = await setup.run("set", "--no-wait")
    assert ended.code == 0
    assert (
        f"warning: {url} is not reached from here: no connection: connection refused" in ended.out
    )


async def test_info(setup: Setup, panel: Hook) -> None:
    """`info` shows what Telegram holds, and what to do where the configuration has another URL."""
    setup.double.set_webhook(panel.url, allowed_updates=["poll"])
    setup.write("http://127.0.0.1:1/elsewhere")
    ended = await setup.run("info")
    assert ended == Ended(
        0,
        f"{panel.url}  pending 0\n"
        "allowed_updates poll; max_connections 40\n"
        "ip_address 127.0.0.1\n"
        "expected http://127.0.0.1:1/elsewhere: `twr webhook set` registers it\n",
        "",
    )


async def test_info_as_json(setup: Setup, panel: Hook) -> None:
    """`info --json` prints Telegram's own fields, and whether the URL is the expected one."""
    setup.double.set_webhook(panel.url)
    setup.write(panel.url)
    ended = await setup.run("info", "--json")
    assert ended.code == 0
    assert json.loads(ended.out) == {
        "url": panel.url,
        "pending_update_count": 0,
        "has_custom_certificate": False,
        "ip_address": "127.0.0.1",
        "last_error_date": None,
        "last_error_message": None,
        "last_synchronization_error_date": None,
        "max_connections": 40,
        "allowed_updates": None,
        "expected": panel.url,
        "matches": True,
    }


async def test_delete(setup: Setup, panel: Hook) -> None:
    """`delete` shows what was and what is, and keeps what waits."""
    setup.write(panel.url)
    setup.double.set_webhook("http://127.0.0.1:1/")
    setup.double.enqueue()
    ended = await setup.run("delete")
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.splitlines()[0] == "before: http://127.0.0.1:1/  pending 1"
    assert "Telegram: Webhook was deleted" in ended.out
    assert "after:  (no webhook is set)  pending 1" in ended.out
    assert (setup.double.webhook, setup.double.pending) == (None, 1)


async def test_short_pause_is_waited_out(tmp_path: Path, panel: Hook) -> None:
    """When Telegram asks for a pause of a second, `set` waits and tries once more."""
    async with TelegramDouble() as double:
        setup = Setup(tmp_path, double)
        setup.write(panel.url)
        set_webhook = double.methods["setwebhook"]
        refusals = [RefusalError(429, "Too Many Requests: retry after 1", retry_after=1)]

        def answer(params: Mapping[str, Any]) -> tuple[Any, str | None]:
            if refusals:
                raise refusals.pop()
            return set_webhook(params)

        double.methods["setwebhook"] = answer
        ended = await setup.run("set")
        assert (ended.code, ended.err) == (0, "")
        assert [method for method, _ in double.calls].count("setWebhook") == 2


async def test_somebody_else_sets_it_too(setup: Setup, panel: Hook) -> None:
    """When Telegram holds another URL right after, the command says so and exits 1."""
    setup.double.methods["setwebhook"] = lambda params: (True, "Webhook was set")
    setup.write(panel.url)
    ended = await setup.run("set")
    assert ended.code == 1
    assert "Telegram holds another URL than the one just set" in ended.out


async def test_telegram_away(setup: Setup, panel: Hook) -> None:
    """No usable answer of the Bot API is one line and exit code 69."""
    setup.double.api_fault = "html"
    setup.write(panel.url)
    for command in ("info", "set", "delete"):
        ended = await setup.run(command)
        assert (ended.code, ended.out) == (69, "")
        assert ended.err.endswith("answers 200 with HTML: is bot.api_url a Bot API server?\n")
        assert ended.err.count("\n") == 1


async def test_wrong_token(setup: Setup, panel: Hook) -> None:
    """A token that Telegram does not know is one line and exit code 69."""
    setup.write(panel.url)
    setup.token = "1:wrong"
    ended = await setup.run("info")
    assert (ended.code, ended.err) == (
        69,
        "Telegram refused: 401 Unauthorized (is the bot token right?)\n",
    )


async def test_no_token(setup: Setup, panel: Hook) -> None:
    """Without a token there is exit code 78, and the setting is named."""
    file = setup.write(panel.url)
    setup.token = ""
    ended = await setup.run("info")
    assert ended.code == 78
    assert ended.err.splitlines()[-1].startswith(f"{file}:1: bot.token_env: ")


async def test_no_webhook_url(setup: Setup) -> None:
    """Without bot.webhook_url there is nothing to set: exit code 78."""
    file = setup.write(None)
    ended = await setup.run("set")
    assert (ended.code, ended.err) == (78, f"{file}:1: bot.webhook_url: give the public URL\n")


async def test_url_that_telegram_would_refuse(setup: Setup) -> None:
    """A URL that Telegram's own server would refuse is exit code 78, before anything is asked."""
    file = setup.write("https://panel.example:8080/hook", "https://api.telegram.org")
    ended = await setup.run("set")
    assert ended.code == 78
    assert ended.err == (
        f"{file}:4: bot.webhook_url: Telegram would refuse it: "
        "port 8080 is not one of 443, 80, 88, 8443\n"
    )


async def test_wait_is_a_duration(setup: Setup, panel: Hook) -> None:
    """--wait is written as the durations of the file; anything else is wrong usage."""
    setup.write(panel.url)
    ended = await setup.run("set", "--wait", "5")
    assert (ended.code, setup.double.calls) == (2, [])
    assert "write 5s" in ended.err


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("https://panel.example/hook", None),
        ("https://panel.example:8443/hook", None),
        ("https://8.8.8.8/hook", None),
        ("http://panel.example/hook", "it must begin with https://"),
        ("panel.example/hook", "it must begin with https://"),
        ("https:///hook", "it has no host"),
        ("https://panel.example:8080/", "port 8080 is not one of 443, 80, 88, 8443"),
        ("https://panel.example:port/", "it is no URL: look at its host and port"),
        (
            "https://[2606:4700::1]/",
            "Telegram sends to IPv4 only: give a name, or an IPv4 address",
        ),
        ("https://192.168.1.4/", "192.168.1.4 cannot be reached from outside"),
    ],
)
def test_refusal(url: str, reason: str | None) -> None:
    """What Telegram would refuse is known before it is asked."""
    assert refusal(url) == reason


@pytest.mark.parametrize(
    ("api_url", "official"),
    [("https://api.telegram.org", True), ("http://127.0.0.1:8081", False)],
)
def test_official_server(api_url: str, official: bool) -> None:
    """Only Telegram's own server is strict about webhook URLs."""
    assert is_official(api_url) is official


@pytest.mark.parametrize("word", ["unauthorized", "forbidden"])
def test_twr_itself_is_no_reason_to_warn(word: str) -> None:
    """A 401 or 403 in twr's own words is how it should be."""
    status = {"unauthorized": 401, "forbidden": 403}[word]
    assert front_warning("https://x.example/", Answer(status, word)) is None


def test_text_of_telegram_forges_no_line() -> None:
    """What Telegram tells is shown on lines of our own."""
    info: dict[str, Any] = {"last_error_date": 1000, "last_error_message": "a\nb\x1b[31m"}
    told = lines(WebhookInfo("https://u:pw@x.example/\n", 1, **info), now=1000 + 7200)
    assert told[:2] == [
        "https://***@x.example/  pending 1",
        'last error 2 h ago: "a\\x0ab\\x1b[31m"',
    ]
