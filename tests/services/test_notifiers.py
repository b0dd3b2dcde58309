"""Where alerts go, over real connections."""

import contextlib
import json
import logging
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Any

import anyio
import pytest
from aiohttp import ClientSession, web

from twr.core.alerting import Notice
from twr.core.backoff import Backoff
from twr.core.clock import Clock
from twr.core.system import NOTICE
from twr.double import TelegramDouble
from twr.edges import notifiers
from twr.edges.notifiers import (
    ChatSink,
    Failure,
    Heartbeat,
    Outbox,
    Pulse,
    WebhookSink,
    line,
    message,
    payload,
)
from twr.edges.telegram import Telegram
from twr.errors import TelegramRefused, TelegramUnreachable, TokenInvalid

pytestmark = pytest.mark.anyio

CLOCK = Clock(time.time, time.monotonic)
QUICK = Backoff(first=0.01, factor=1.0, max=0.01, jitter=0.0)
SINCE = 1_790_000_000.0
DRIFT = Notice(
    "firing",
    "webhook_url_drift",
    None,
    (("expected", "https://new.example/hook"), ("actual", "https://old.example/hook")),
    SINCE,
    SINCE,
)


def half() -> float:
    """No luck at all."""
    return 0.5


def notice(kind: str = "firing", alert: str = "route_down", **fields: Any) -> Notice:
    """A notice about the route shop, unless said otherwise."""
    given = {"subject": "shop", "detail": (("failures", 5),), "since": SINCE, "at": SINCE + 60}
    return Notice(kind, alert, **{**given, **fields})  # type: ignore[arg-type]


DRIFT_LINE = (
    "ALERT firing webhook_url_drift "
    "expected=https://new.example/hook actual=https://old.example/hook"
)


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        (DRIFT, DRIFT_LINE),
        (notice("resolved", "webhook_url_drift", subject=None), "ALERT resolved webhook_url_drift"),
        (notice(), "ALERT firing route_down route=shop failures=5"),
        (notice("resolved"), "ALERT resolved route_down route=shop"),
        (
            replace(notice("resolved"), instance="vps-2"),
            "ALERT resolved route_down route=shop instance_gone=vps-2",
        ),
        (
            notice("repeat"),
            "ALERT firing route_down route=shop failures=5 since=2026-09-21T14:13:20Z",
        ),
        (
            notice(alert="dead_letters", subject="shop/expired", detail=(("count", 3),)),
            "ALERT firing dead_letters route=shop reason=expired count=3",
        ),
        (
            notice(
                alert="webhook_error",
                subject=None,
                detail=(("error", "a\nALERT resolved webhook_error \x1b[2J"),),
            ),
            'ALERT firing webhook_error error="a\\nALERT resolved webhook_error \\u001b[2J"',
        ),
    ],
)
def test_the_log_line_of_a_notice(told: Notice, expected: str) -> None:
    """Subject, details in their order, what came from outside quoted on one line."""
    assert line(told) == expected


@pytest.mark.parametrize(
    ("kind", "level"), [("firing", logging.ERROR), ("repeat", logging.ERROR), ("resolved", NOTICE)]
)
async def test_the_log_level_of_a_notice(
    kind: str, level: int, caplog: pytest.LogCaptureFixture
) -> None:
    """An error while it fires, a notice when it is over."""
    with caplog.at_level(logging.INFO):
        notifiers.tell_log(notice(kind, detail=(("url", "https://x/%s"),)))
    (record,) = caplog.records
    assert (record.name, record.levelno) == ("twr.alerts", level)


def test_a_message_is_plain_text() -> None:
    """Braces and angle brackets arrive as they are."""
    ssl = "SSL error {error:0A000086:SSL routines::certificate verify failed} <b>&amp;"
    told = notice(alert="webhook_error", subject=None, detail=(("error", ssl),))
    assert message(told, "twr main on vps-1") == (
        f"FIRING webhook_error\nerror: {ssl}\ntwr main on vps-1"
    )


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (
            "repeat",
            "STILL FIRING route_down\nroute: shop\nfailures: 5\nsince: 2026-09-21T14:13:20Z",
        ),
        ("resolved", "RESOLVED route_down\nroute: shop\nsince: 2026-09-21T14:13:20Z"),
    ],
)
def test_a_message_says_since_when(kind: str, expected: str) -> None:
    """Whoever reads it an hour later knows how long it took."""
    assert message(notice(kind), "twr") == f"{expected}\ntwr"


@pytest.mark.parametrize("text", ["x", "\N{PILE OF POO}", "ж"])
def test_a_message_fits_in_utf_16_units(text: str) -> None:
    """4096 of them, no half character at the end."""
    detail = tuple((f"field{number}", text * 500) for number in range(20))
    sent = message(notice(detail=detail), "twr")
    assert 4095 <= len(sent.encode("utf-16-le")) // 2 <= 4096
    assert sent.endswith(f"{text}…")


def test_the_payload_of_a_webhook() -> None:
    """One flat object, and the log line for whoever shows only a text."""
    assert payload(notice("repeat"), "twr main on vps-1") == {
        "status": "firing",
        "repeat": True,
        "alert": "route_down",
        "route": "shop",
        "detail": {"failures": 5},
        "since": "2026-09-21T14:13:20Z",
        "at": "2026-09-21T14:14:20Z",
        "sender": "twr main on vps-1",
        "text": "ALERT firing route_down route=shop failures=5 since=2026-09-21T14:13:20Z",
    }


@dataclass
class Receiver:
    """An HTTP server that notes what it is asked and answers as told."""

    url: str = ""
    requests: list[tuple[str, str, dict[str, str], bytes]] = field(default_factory=list)
    answers: list[Callable[[], Awaitable[web.StreamResponse]]] = field(default_factory=list)
    asked: anyio.Event = field(default_factory=anyio.Event)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer the next of `answers`, 204 when there is none left."""
        body = await request.read()
        self.requests.append((request.method, request.path_qs, dict(request.headers), body))
        self.asked.set()
        return await self.answers.pop(0)() if self.answers else web.Response(status=204)

    async def until(self, count: int) -> None:
        """Wait until it has been asked so often."""
        with anyio.fail_after(5):
            while len(self.requests) < count:
                self.asked = anyio.Event()
                await self.asked.wait()

    def will_answer(self, status: int, **headers: str) -> None:
        """One more answer."""

        async def answer() -> web.StreamResponse:
            return web.Response(status=status, headers=headers)

        self.answers.append(answer)

    def will_hang(self) -> None:
        """One more answer, that never comes."""

        async def answer() -> web.StreamResponse:
            await anyio.sleep_forever()
            raise AssertionError

        self.answers.append(answer)


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    """A server on the loopback."""
    it = Receiver()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", it.handle)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    it.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield it
    await runner.cleanup()


@pytest.fixture
async def session() -> AsyncIterator[ClientSession]:
    """The session of all sinks."""
    async with notifiers.open_session() as it:
        yield it


def webhook(session: ClientSession, url: str, **headers: str) -> WebhookSink:
    """A sink for this URL."""
    return WebhookSink(session, CLOCK, url, tuple(headers.items()), "twr")


async def test_a_webhook_gets_json(receiver: Receiver, session: ClientSession) -> None:
    """One POST with the notice and the headers given."""
    sink = webhook(session, f"{receiver.url}/hook?a=1", Authorization="Bearer x")
    assert await sink.send(DRIFT) is None
    ((method, path, headers, body),) = receiver.requests
    assert (method, path) == ("POST", "/hook?a=1")
    assert headers["Authorization"] == "Bearer x"
    assert headers["Content-Type"] == "application/json"
    assert json.loads(body) == payload(DRIFT, "twr")


@pytest.mark.parametrize("status", [301, 302, 307, 308])
async def test_a_redirect_is_a_failure(
    status: int, receiver: Receiver, session: ClientSession
) -> None:
    """The location is never asked."""
    receiver.will_answer(status, Location=f"{receiver.url}/elsewhere")
    failure = await webhook(session, receiver.url).send(DRIFT)
    assert failure == Failure(f"it answers {status}, a redirect, which is not followed")
    assert [path for _, path, _, _ in receiver.requests] == ["/"]


async def test_a_webhook_may_ask_for_patience(receiver: Receiver, session: ClientSession) -> None:
    """Retry-After is passed on."""
    receiver.will_answer(429, **{"Retry-After": "7"})
    failure = await webhook(session, receiver.url).send(DRIFT)
    assert failure == Failure("it answers 429", retry_after=7.0)


async def test_a_chat_gets_a_message_in_its_topic() -> None:
    """Through the bot itself, as plain text."""
    async with (
        TelegramDouble() as double,
        Telegram(double.api_url, double.token) as client,
    ):
        detail = (("error", "SSL error {error:0A000086} <x>"),)
        sink = ChatSink(client, -1001234567890, 7, "twr")
        assert await sink.send(notice(alert="webhook_error", subject=None, detail=detail)) is None
        (sent,) = double.sent
        assert int(sent["chat_id"]) == -1001234567890
        assert int(sent["message_thread_id"]) == 7
        assert sent["text"] == "FIRING webhook_error\nerror: SSL error {error:0A000086} <x>\ntwr"
        assert "parse_mode" not in sent


@dataclass(frozen=True)
class Broken:
    """A Bot API client whose every call fails."""

    error: Exception

    async def send_message(
        self, chat_id: int | str, text: str, *, message_thread_id: int | None = None
    ) -> None:
        """Fail."""
        raise self.error


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (
            TelegramRefused(400, "Bad Request: chat not found"),
            Failure("Telegram refused: 400 Bad Request: chat not found", final=True),
        ),
        (
            TelegramRefused(429, "Too Many Requests", 17),
            Failure("Telegram refused: 429 Too Many Requests", retry_after=17.0),
        ),
        (
            TokenInvalid(401, "Unauthorized"),
            Failure("Telegram refused: 401 Unauthorized"),
        ),
    ],
)
async def test_what_telegram_refuses(error: Exception, expected: Failure) -> None:
    """No chat of that name is final; a flood limit and a valid token are waited for."""
    assert await ChatSink(Broken(error), 1, None, "twr").send(DRIFT) == expected


@dataclass
class Scripted:
    """A sink that fails as told, then takes everything."""

    failures: list[Failure | Exception] = field(default_factory=list)
    taken: list[Notice] = field(default_factory=list)
    name: str = "scripted"
    down: bool = False
    attempts: int = 0
    changed: anyio.Event = field(default_factory=anyio.Event)

    async def send(self, notice: Notice) -> Failure | None:
        """Take it or fail."""
        self.attempts += 1
        changed, self.changed = self.changed, anyio.Event()
        changed.set()
        if self.down:
            return Failure("away")
        if self.failures:
            failure = self.failures.pop(0)
            if isinstance(failure, Exception):
                raise failure
            return failure
        self.taken.append(notice)
        return None

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until an attempt has made `condition` true."""
        with anyio.fail_after(5):
            while not condition():
                await self.changed.wait()


@contextlib.asynccontextmanager
async def running(
    outbox: Outbox | Pulse, stop: anyio.Event | None = None
) -> AsyncIterator[anyio.Event]:
    """`outbox` at work; it is stopped at the end."""
    stop = stop or anyio.Event()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(outbox.run, stop)
        yield stop
        stop.set()


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What the notifiers have said."""
    return [it.getMessage() for it in caplog.records if it.name == "twr.notifiers"]


async def test_an_outbox_tries_again_in_order(caplog: pytest.LogCaptureFixture) -> None:
    """Failures of any kind are retried, said once, and followed by word of the recovery."""
    sink = Scripted([Failure("busy"), TelegramUnreachable("no answer"), OSError(111, "x")])
    outbox = Outbox(sink, CLOCK, half, 3600.0, QUICK)
    told = [notice(subject=f"route-{number}") for number in range(3)]
    with caplog.at_level(logging.INFO):
        async with running(outbox):
            for each in told:
                outbox.post(each)
            await sink.until(lambda: len(sink.taken) == 3)
    assert sink.taken == told
    assert sink.attempts == 6
    assert warnings(caplog) == [
        "sink scripted unavailable reason=busy",
        "sink scripted available again",
    ]


async def test_a_notice_refused_for_good_makes_way(caplog: pytest.LogCaptureFixture) -> None:
    """The next one is not held up by it."""
    sink = Scripted([Failure("chat not found", final=True)])
    outbox = Outbox(sink, CLOCK, half, 3600.0, QUICK)
    async with running(outbox):
        outbox.post(notice(subject="lost"))
        outbox.post(notice(subject="sent"))
        await sink.until(lambda: bool(sink.taken))
    assert [it.subject for it in sink.taken] == ["sent"]
    assert sink.attempts == 2


async def test_a_sink_that_is_down_is_one_line_per_repeat(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """However often it is tried."""
    now = 0.0
    sink = Scripted(down=True)
    outbox = Outbox(sink, Clock(time.time, lambda: now), half, 600.0, QUICK)
    async with running(outbox):
        outbox.post(DRIFT)
        await sink.until(lambda: sink.attempts == 20)
        assert len(warnings(caplog)) == 1
        now = 601.0
        seen = sink.attempts
        await sink.until(lambda: sink.attempts == seen + 20)
        assert len(warnings(caplog)) == 2


async def test_a_notice_is_given_up_after_an_hour() -> None:
    """What is too old gives way to what is new."""
    now = 0.0
    sink = Scripted(down=True)
    outbox = Outbox(sink, Clock(time.time, lambda: now), half, 600.0, QUICK)
    async with running(outbox):
        outbox.post(notice(subject="old"))
        await sink.until(lambda: sink.attempts == 3)
        now = 3600.0
        outbox.post(notice(subject="new"))
        seen = sink.attempts
        await sink.until(lambda: sink.attempts >= seen + 3)
        sink.down = False
        await sink.until(lambda: bool(sink.taken))
    assert [it.subject for it in sink.taken] == ["new"]


async def test_an_outbox_is_bounded() -> None:
    """The oldest of too many go first."""
    sink = Scripted(down=True)
    outbox = Outbox(sink, CLOCK, half, 3600.0, QUICK)
    async with running(outbox):
        outbox.post(notice(subject="first"))
        await sink.until(lambda: sink.attempts == 2)
        for number in range(250):
            outbox.post(notice(subject=str(number)))
        sink.down = False
        await sink.until(lambda: bool(sink.taken) and sink.taken[-1].subject == "249")
    subjects = [it.subject for it in sink.taken if it.subject != "first"]
    assert subjects == [str(number) for number in range(150, 250)]


async def test_a_stop_sends_what_still_waits() -> None:
    """An alert told just before the end is not lost, and a pause between attempts is cut short."""
    sink = Scripted([Failure("busy")])
    outbox = Outbox(sink, CLOCK, half, 3600.0, Backoff(1000.0, 1.0, 1000.0, 0.0))
    async with running(outbox) as stop:
        outbox.post(notice(subject="a"))
        await sink.until(lambda: sink.attempts == 1)
        outbox.post(notice(subject="b"))
        stop.set()
    assert [it.subject for it in sink.taken] == ["a", "b"]


async def test_a_stop_does_not_wait_for_a_sink_that_hangs(
    receiver: Receiver, session: ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some seconds are all it gets."""
    monkeypatch.setattr(notifiers, "LAST_WORDS", 0.05)
    receiver.will_hang()
    outbox = Outbox(webhook(session, receiver.url), CLOCK, half, 3600.0, QUICK)
    with anyio.fail_after(3):
        async with running(outbox):
            outbox.post(DRIFT)
            await receiver.asked.wait()


NO_URL = "its URL is no usable http or https URL"


def free_port() -> int:
    """A port at which nobody listens."""
    with socket.socket() as it:
        it.bind(("127.0.0.1", 0))
        return int(it.getsockname()[1])


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("https://127.0.0.1:{port}/s3cret", "connection refused"),
        ("http://me:hunter2@127.0.0.1:{port}/s3cret?k=s3cret", "connection refused"),
        ("http://127.0.0.1:{port}\x00/s3cret", NO_URL),
        ("s3cret", NO_URL),
        ("ftp://s3cret.example/s3cret", NO_URL),
    ],
)
async def test_no_url_of_a_sink_is_ever_shown(
    url: str, reason: str, session: ClientSession, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither in the reason of a failure nor in the sink's own text."""
    sink = webhook(session, url.format(port=free_port()), Title="s3cret")
    heartbeat = Heartbeat(session, CLOCK, sink.url)
    with anyio.fail_after(5), caplog.at_level(logging.DEBUG):
        outbox = Outbox(sink, CLOCK, half, 3600.0, QUICK)
        outbox.post(DRIFT)
        stop = anyio.Event()
        stop.set()
        await outbox.run(stop)
    assert warnings(caplog) == [f'sink webhook unavailable reason="{reason}"']
    for text in (*warnings(caplog), repr(sink), repr(heartbeat), caplog.text):
        assert "s3cret" not in text
        assert "hunter2" not in text


async def test_a_heartbeat_is_one_request_per_beat(
    receiver: Receiver, session: ClientSession
) -> None:
    """A GET; a failed one is tried again."""
    receiver.will_answer(500)
    pulse = Pulse(Heartbeat(session, CLOCK, f"{receiver.url}/ping"), CLOCK, half, 3600.0, QUICK)
    async with running(pulse):
        pulse.beat()
        await receiver.until(2)
    assert [(method, path) for method, path, _, _ in receiver.requests] == [("GET", "/ping")] * 2


async def test_a_heartbeat_that_fails_is_one_line(
    receiver: Receiver, session: ClientSession, caplog: pytest.LogCaptureFixture
) -> None:
    """Three attempts a beat, however many beats."""
    pulse = Pulse(Heartbeat(session, CLOCK, receiver.url), CLOCK, half, 3600.0, QUICK)
    for _ in range(6):
        receiver.will_answer(500)
    async with running(pulse):
        pulse.beat()
        await receiver.until(3)
        pulse.beat()
        await receiver.until(6)
    assert warnings(caplog) == ['heartbeat unavailable reason="it answers 500"']
