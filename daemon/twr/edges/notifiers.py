"""Where alerts go: the log, a Telegram chat, a JSON webhook; and the heartbeat.

The URLs may be secrets, so no text of an HTTP library is ever shown, only words of our own.
"""

import logging
import os
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Protocol

import aiohttp
import anyio

from twr import pace
from twr.core.alerting import Notice
from twr.core.backoff import Backoff, delay, retry_after
from twr.core.clock import Clock
from twr.core.findings import labels
from twr.core.system import NOTICE
from twr.core.text import clip, escape, kv, utc
from twr.errors import TelegramRefused, TokenInvalid, TwrError

TIMEOUT = 10.0
"""Seconds for one request to a sink."""

RETRIES = Backoff(first=1.0, factor=2.0, max=60.0, jitter=0.2)

GIVE_UP = 3600.0
"""Seconds for which a notice is tried; whoever is away longer reads the next repeat."""

MOST_WAITING = 100

LAST_WORDS = 2.0
"""Seconds that a stop leaves for what still waits."""

_MAX_TEXT = 4096  # UTF-16 units of a message (https://core.telegram.org/bots/api#sendmessage)
_MAX_VALUE = 500

alerts = logging.getLogger("twr.alerts")
log = logging.getLogger("twr.notifiers")


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a notice was not taken. `final`: it never will be; `retry_after` in seconds."""

    reason: str
    final: bool = False
    retry_after: float = 0.0


class Sink(Protocol):
    """Somewhere a notice can go. Sinks that compare equal are the same place."""

    @property
    def name(self) -> str: ...

    async def send(self, notice: Notice) -> Failure | None:
        """Hand it over; the reason when it was refused. Raises what the way there raises."""


class Messenger(Protocol):
    """The part of the Bot API client that a chat needs."""

    async def send_message(
        self, chat_id: int | str, text: str, *, message_thread_id: int | None = None
    ) -> None: ...


def line(notice: Notice) -> str:
    """The log line of a notice. What is over has said its details when it began."""
    fields = {name: _clipped(value) for name, value in _fields(notice)}
    if notice.kind == "repeat":
        fields["since"] = utc(notice.since)
    word = "resolved" if notice.kind == "resolved" else "firing"
    return f"ALERT {word} {notice.alert} {kv(**fields)}".rstrip()


def tell_log(notice: Notice) -> None:
    """Write the notice to the log: an error while it fires, a notice when it is over."""
    # By a logger of its own: the log holds none of its lines back (edges/logs.py).
    alerts.log(NOTICE if notice.kind == "resolved" else logging.ERROR, line(notice))


@dataclass(frozen=True, slots=True)
class ChatSink:
    """A chat, or a topic of it, written to by the bot itself. `sender` says which twr it is."""

    messenger: Messenger = field(repr=False)
    chat_id: int | str
    message_thread_id: int | None
    sender: str
    name: str = "telegram"

    async def send(self, notice: Notice) -> Failure | None:
        try:
            await self.messenger.send_message(
                self.chat_id,
                message(notice, self.sender),
                message_thread_id=self.message_thread_id,
            )
        except TelegramRefused as refused:
            return _refusal(refused)
        return None


@dataclass(frozen=True, slots=True)
class WebhookSink:
    """A URL that takes each notice as a JSON object."""

    session: aiohttp.ClientSession = field(repr=False)
    clock: Clock = field(repr=False)
    url: str = field(repr=False)
    headers: tuple[tuple[str, str], ...] = field(repr=False)
    sender: str
    name: str = "webhook"

    async def send(self, notice: Notice) -> Failure | None:
        return await _ask(
            self.session,
            self.clock,
            "POST",
            self.url,
            json=payload(notice, self.sender),
            headers=dict(self.headers),
        )


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A URL that is to be asked regularly, and raises its own alarm when it is not."""

    session: aiohttp.ClientSession = field(repr=False)
    clock: Clock = field(repr=False)
    url: str = field(repr=False)

    async def ping(self) -> Failure | None:
        """Ask it once; the reason when it was refused. Raises what the way there raises."""
        return await _ask(self.session, self.clock, "GET", self.url)


def open_session() -> aiohttp.ClientSession:
    """The session that WebhookSink and Heartbeat share; whoever opens it closes it."""
    return aiohttp.ClientSession(
        cookie_jar=aiohttp.DummyCookieJar(), timeout=aiohttp.ClientTimeout(total=TIMEOUT)
    )


def message(notice: Notice, sender: str) -> str:
    """The notice for a chat: plain text that fits into one message."""
    word = {"firing": "FIRING", "repeat": "STILL FIRING", "resolved": "RESOLVED"}[notice.kind]
    lines = [f"{word} {notice.alert}"]
    lines += [f"{name}: {escape(_clipped(value))}" for name, value in _fields(notice)]
    if notice.kind != "firing":
        lines.append(f"since: {utc(notice.since)}")
    return _fit("\n".join([*lines, escape(sender)]), _MAX_TEXT)


def payload(notice: Notice, sender: str) -> Mapping[str, Any]:
    """The notice for a webhook."""
    return {
        "status": "resolved" if notice.kind == "resolved" else "firing",
        "repeat": notice.kind == "repeat",
        "alert": notice.alert,
        **dict(_labels(notice)),
        "detail": dict(notice.detail),
        "since": utc(notice.since),
        "at": utc(notice.at),
        "sender": sender,
        "text": line(notice),
    }


class Complaints:
    """What the log hears of a place that cannot be reached: one line per `repeat` seconds."""

    def __init__(self, name: str, clock: Clock, repeat: float) -> None:
        self._name = name
        self._clock = clock
        self._repeat = repeat
        self._at: float | None = None

    def failed(self, failure: Failure) -> None:
        now = self._clock.monotonic()
        if self._at is None or now - self._at >= self._repeat:
            self._at = now
            log.warning("%s unavailable %s", self._name, kv(reason=failure.reason))

    def worked(self) -> None:
        if self._at is not None:
            self._at = None
            log.info("%s available again", self._name)


class Outbox:
    """The notices that wait for one sink, in order: `post` never waits, `run` sends.

    Bounded in number (the oldest go first) and in age; `repeat` as in Complaints.
    """

    def __init__(
        self,
        sink: Sink,
        clock: Clock,
        random: Callable[[], float],
        repeat: float,
        retries: Backoff = RETRIES,
    ) -> None:
        self._sink = sink
        self._retries = retries
        self._clock = clock
        self._random = random
        self._complaints = Complaints(f"sink {sink.name}", clock, repeat)
        self._waiting: deque[tuple[float, Notice]] = deque(maxlen=MOST_WAITING)
        self._posted = anyio.Event()

    def post(self, notice: Notice) -> None:
        """Leave a notice to be sent."""
        self._waiting.append((self._clock.monotonic(), notice))
        self._posted.set()

    async def run(self, stop: anyio.Event) -> None:
        """Send until `stop`; what waits then is tried once more within LAST_WORDS seconds."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._run, stop)
            await stop.wait()
            self._posted.set()
            tasks.cancel_scope.deadline = anyio.current_time() + LAST_WORDS

    async def _run(self, stop: anyio.Event) -> None:
        while not stop.is_set() or self._waiting:
            await self._posted.wait()
            while self._waiting:
                first = self._waiting[0]
                await self._send(*first, stop)
                # The bound may have pushed it out in the meantime.
                if self._waiting[0] is first:
                    self._waiting.popleft()
            if not stop.is_set():
                self._posted = anyio.Event()

    async def _send(self, posted: float, notice: Notice, stop: anyio.Event) -> None:
        """Try until the sink has taken it, or it is too old."""
        for attempt in count(1):
            last = stop.is_set()
            failure = await _outcome(self._sink.send(notice))
            if failure is None:
                self._complaints.worked()
                return
            self._complaints.failed(failure)
            pause = max(delay(self._retries, attempt, self._random), failure.retry_after)
            too_old = self._clock.monotonic() + pause - posted > GIVE_UP
            if failure.final or too_old or last:
                return
            await pace.wait(stop, pause)


class Pulse:
    """Pings the heartbeat once per `beat`, with a few attempts; `repeat` as in Complaints."""

    ATTEMPTS = 3

    def __init__(
        self,
        heartbeat: Heartbeat,
        clock: Clock,
        random: Callable[[], float],
        repeat: float,
        retries: Backoff = RETRIES,
    ) -> None:
        self._heartbeat = heartbeat
        self._retries = retries
        self._random = random
        self._complaints = Complaints("heartbeat", clock, repeat)
        self._due = anyio.Event()

    def beat(self) -> None:
        """Ask for a ping; it follows the one under way, and is no more than one."""
        self._due.set()

    async def run(self, stop: anyio.Event) -> None:
        """Ping until `stop`."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._run, stop)
            await stop.wait()
            tasks.cancel_scope.cancel()

    async def _run(self, stop: anyio.Event) -> None:
        while True:
            await self._due.wait()
            self._due = anyio.Event()
            for attempt in range(1, self.ATTEMPTS + 1):
                failure = await _outcome(self._heartbeat.ping())
                if failure is None:
                    self._complaints.worked()
                    break
                self._complaints.failed(failure)
                await pace.wait(stop, delay(self._retries, attempt, self._random))


async def _ask(
    session: aiohttp.ClientSession, clock: Clock, method: str, url: str, **options: Any
) -> Failure | None:
    """One request that follows no redirect and reads no body."""
    async with session.request(method, url, allow_redirects=False, **options) as response:
        status = response.status
        wait = retry_after(response.headers.get("Retry-After"), clock.time())
    if 200 <= status < 300:
        return None
    redirect = ", a redirect, which is not followed" if 300 <= status < 400 else ""
    return Failure(f"it answers {status}{redirect}", retry_after=wait or 0.0)


async def _outcome(call: Awaitable[Failure | None]) -> Failure | None:
    """What became of an attempt, whatever was raised on the way."""
    try:
        return await call
    except Exception as error:
        return Failure(_problem(error))


def _problem(error: Exception) -> str:
    """What went wrong, without the text of a library's error: that may hold the URL."""
    if isinstance(error, TwrError):
        return str(error)
    match error:
        case TimeoutError():
            return f"no answer within {TIMEOUT:g} s"
        case aiohttp.InvalidURL() | aiohttp.NonHttpUrlClientError():
            return "its URL is no usable http or https URL"
        case aiohttp.ClientConnectorDNSError():
            return "its name does not resolve"
        case aiohttp.ClientConnectorCertificateError():
            return "its certificate is not accepted"
        case aiohttp.ServerDisconnectedError():
            return "it closes the connection without answering"
        case OSError(errno=int(number)) if number > 0:
            return os.strerror(number).lower()
    return type(error).__name__


def _refusal(refused: TelegramRefused) -> Failure:
    """A refusal stays one, unless it is for want of time, or of a token that may be put right."""
    if refused.code == 429 or isinstance(refused, TokenInvalid):
        return Failure(str(refused), retry_after=float(refused.retry_after or 0))
    return Failure(str(refused), final=True)


def _fields(notice: Notice) -> list[tuple[str, object]]:
    detail = notice.detail if notice.kind != "resolved" else ()
    return [*_labels(notice), *detail]


def _labels(notice: Notice) -> list[tuple[str, str]]:
    gone = [] if notice.instance is None else [("instance_gone", notice.instance)]
    return [*labels(notice.subject), *gone]


def _clipped(value: object) -> str:
    return clip(str(value), _MAX_VALUE)


def _fit(text: str, units: int) -> str:
    """`text` in at most so many UTF-16 units, with an ellipsis where it was cut."""
    raw = text.encode("utf-16-le", "replace")
    if len(raw) <= 2 * units:
        return text
    return raw[: 2 * (units - 1)].decode("utf-16-le", "ignore") + "…"
