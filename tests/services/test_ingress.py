"""The public listener over real sockets, with a store in memory."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, field, replace
from ipaddress import ip_network
from typing import Any

import anyio
import pytest

from twr.config.model import Listen
from twr.core.jobs import Accepted, Arrival, Destination
from twr.core.matching import Match, Rule
from twr.edges.sockets import bind
from twr.errors import StoreError, StoreFull, StoreUnavailable
from twr.services import ingress
from twr.services.ingress import Accepting, Dependencies, Settings
from twr.services.ingress import app as module
from until import until

pytestmark = pytest.mark.anyio

SECRET = b"the-secret"
BODY = b'{"update_id":42,\n"message":{"chat":{"id":7},"text":"hello"}}'

OPEN = Settings(
    path="/hook",
    max_body=1000,
    trusted_networks=None,
    trusted_proxies=(),
    secrets=(SECRET,),
    rules=(
        Rule("shop", Match(update_types=frozenset({"message", "callback_query"}))),
        Rule("audit", Match(update_types=frozenset({"callback_query"}))),
    ),
    destinations={
        "shop": Destination("shop", True, 100),
        "audit": Destination("audit", False, 200),
    },
)


@dataclass
class Memory:
    """A store that takes each id once; `error` is raised, `gate` waited for."""

    arrivals: list[Arrival] = field(default_factory=list)
    error: StoreError | None = None
    gate: asyncio.Event | None = None

    async def accept(self, arrival: Arrival) -> Accepted:
        if self.gate is not None:
            await self.gate.wait()
        if self.error is not None:
            raise self.error
        if any(known.update_id == arrival.update_id for known in self.arrivals):
            return Accepted(None)
        self.arrivals.append(arrival)
        return Accepted(len(arrival.destinations))


@dataclass
class Counts:
    """What was counted and told."""

    received_: list[str] = field(default_factory=list)
    rejected_: list[str] = field(default_factory=list)
    errors: int = 0
    accepted: int = 0
    unauthorized: int = 0

    def received(self, outcome: str) -> None:
        self.received_.append(outcome)

    def rejected(self, reason: str) -> None:
        self.rejected_.append(reason)

    def store_error(self) -> None:
        self.errors += 1

    def told_accepted(self) -> None:
        self.accepted += 1

    def told_unauthorized(self) -> None:
        self.unauthorized += 1


@dataclass(frozen=True)
class Listener:
    """A running listener; `settings` may be changed by way of its list."""

    port: int
    store: Memory
    counts: Counts
    settings: list[Settings]

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port)

    async def raw(self, data: bytes) -> tuple[int, dict[str, str], bytes]:
        """Send these bytes on a connection of their own; status, headers and body."""
        reader, writer = await self.connect()
        writer.write(data)
        try:
            return await answer_of(reader, head_only=data.startswith(b"HEAD"))
        finally:
            writer.close()

    async def post(
        self,
        body: bytes = BODY,
        *,
        path: str = "/hook",
        method: str = "POST",
        headers: tuple[tuple[bytes, bytes], ...] = ((b"X-Telegram-Bot-Api-Secret-Token", SECRET),),
    ) -> tuple[int, dict[str, str], bytes]:
        """A request as Telegram makes it."""
        return await self.raw(request(body, path=path, method=method, headers=headers))


def request(
    body: bytes = BODY,
    *,
    path: str = "/hook",
    method: str = "POST",
    headers: tuple[tuple[bytes, bytes], ...] = ((b"X-Telegram-Bot-Api-Secret-Token", SECRET),),
) -> bytes:
    """The bytes of a request."""
    head = f"{method} {path} HTTP/1.1\r\nHost: bot\r\nContent-Type: application/json\r\n".encode()
    head += b"".join(name + b": " + value + b"\r\n" for name, value in headers)
    return head + b"Content-Length: %d\r\n\r\n" % len(body) + body


async def answer_of(
    reader: asyncio.StreamReader, *, head_only: bool = False
) -> tuple[int, dict[str, str], bytes]:
    async with asyncio.timeout(10):
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = head[:-4].split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in
                   (line.partition(":") for line in lines)}  # fmt: skip
        length = 0 if head_only else int(headers.get("content-length", "0"))
        return int(first.split(" ")[1]), headers, await reader.readexactly(length)


@asynccontextmanager
async def listening(
    settings: Settings = OPEN, username: str | None = None
) -> AsyncIterator[Listener]:
    """A listener, stopped at the end."""

    sock = bind(Listen("127.0.0.1", 0))
    port = sock.getsockname()[1]
    listener = Listener(port, Memory(), Counts(), [settings])
    stop = anyio.Event()
    given = Dependencies(
        settings=lambda: listener.settings[-1],
        username=lambda: username,
        store=listener.store,
        measures=listener.counts,
        accepted=listener.counts.told_accepted,
        unauthorized=listener.counts.told_unauthorized,
    )
    task = asyncio.create_task(ingress.run(given, sock, stop))
    try:
        yield listener
    finally:
        stop.set()
        await asyncio.wait({task})
        assert task.exception() is None


@pytest.fixture
async def listener() -> AsyncIterator[Listener]:
    async with listening() as found:
        yield found


# --- the table of answers -----------------------------------------------------------------------


async def test_stored(listener: Listener) -> None:
    """202 when the update and its deliveries are in the store, byte for byte."""
    assert await listener.post() == (
        202,
        {"content-type": "application/json", "content-length": "34"},
        b'{"status":"queued","deliveries":1}',
    )
    assert listener.store.arrivals == [
        Arrival(42, "message", "7", 86_400, BODY, (Destination("shop", True, 100),))
    ]
    counts = listener.counts
    assert (counts.received_, counts.rejected_, counts.accepted) == (["queued"], [], 1)


async def test_stored_for_several_routes(listener: Listener) -> None:
    """The number of deliveries is told."""
    body = b'{"update_id":1,"callback_query":{"id":"1","from":{"id":7},"data":"x"}}'
    assert (await listener.post(body))[2] == b'{"status":"queued","deliveries":2}'
    (arrival,) = listener.store.arrivals
    assert [to.route for to in arrival.destinations] == ["shop", "audit"]
    assert arrival.expires_after == 150


async def test_seen_before(listener: Listener) -> None:
    """202 and no delivery."""
    await listener.post()
    status, _, body = await listener.post()
    assert (status, body) == (202, b'{"status":"duplicate","deliveries":0}')
    assert listener.counts.received_ == ["queued", "duplicate"]


async def test_no_route(listener: Listener) -> None:
    """202 without asking the store, which may be down."""
    listener.store.error = StoreUnavailable("away")
    status, _, body = await listener.post(b'{"update_id":1,"poll":{"id":"1"}}')
    assert (status, body) == (202, b'{"status":"ignored","deliveries":0}')
    assert (listener.counts.received_, listener.counts.accepted) == (["ignored"], 1)


@pytest.mark.parametrize(
    "given",
    [(), (b"",), (b"wrong",), (SECRET + b"x",), (SECRET[:-1],), (SECRET, SECRET), (SECRET, b"x"),
     (SECRET + b"\xff",), ("the-sécret".encode(),), (b"the-secret, the-secret",)],
)  # fmt: skip
async def test_secret(listener: Listener, given: tuple[bytes, ...]) -> None:
    """401 for one that is missing, wrong, repeated or not ASCII, before the body is looked at."""
    headers = tuple((b"X-Telegram-Bot-Api-Secret-Token", value) for value in given)
    status, _, body = await listener.post(b"x" * 2000, headers=headers)
    assert (status, body) == (401, b'{"status":"unauthorized"}')
    assert (listener.counts.rejected_, listener.counts.unauthorized) == (["unauthorized"], 1)


async def test_two_secrets(listener: Listener) -> None:
    """Either is right while they rotate."""
    listener.settings.append(replace(OPEN, secrets=(b"new", SECRET)))
    for secret in (b"new", SECRET):
        headers = ((b"x-telegram-bot-api-secret-token", secret),)
        assert (await listener.post(headers=headers))[0] == 202


@pytest.mark.parametrize(("size", "status"), [(1000, 400), (1001, 413)])
async def test_size_declared(listener: Listener, size: int, status: int) -> None:
    """413 over `max_body`, to the byte."""
    found, _, body = await listener.post(b"x" * size)
    word = b"too_large" if status == 413 else b"invalid"
    assert (found, body) == (status, b'{"status":"%s"}' % word)


async def test_size_declared_is_refused_before_it_comes(listener: Listener) -> None:
    """The answer is there when none of the body is."""
    head = request(b"").replace(b"Content-Length: 0", b"Content-Length: 10000000")
    assert (await listener.raw(head))[0] == 413


@pytest.mark.parametrize(("chunks", "status"), [(10, 400), (11, 413)])
async def test_size_chunked(listener: Listener, chunks: int, status: int) -> None:
    """The same while it is read, where no length is declared."""
    head = request(b"").replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")
    data = (b"64\r\n" + b"x" * 100 + b"\r\n") * chunks
    assert (await listener.raw(head + data + b"0\r\n\r\n"))[0] == status


@pytest.mark.parametrize(
    "body",
    [b"", b" ", b"[]", b'"x"', b"{}", b'{"update_id":"42"}', b'{"update_id":42.0}', b"\xff",
     b'{"update_id":true}', b'{"update_id":null}', b'{"update_id":9223372036854775808}'],
)  # fmt: skip
async def test_invalid(listener: Listener, body: bytes) -> None:
    """400 for what Telegram cannot send."""
    status, _, answer = await listener.post(body)
    assert (status, answer) == (400, b'{"status":"invalid"}')
    assert listener.counts.rejected_ == ["invalid"]


@pytest.mark.parametrize(
    "body",
    [b'{"update_id":1,"message":{"text":"\xff\xfe"}}', b'{"update_id":1,"message":{"a":"\\ud800"}}',
     b'{"update_id":1,"message":{"chat":null,"from":[]}}',
     b'{"update_id":0,"update_id":1,"message":{}}',
     b'{"update_id":1,"message":' + b"[" * 300 + b"]" * 300 + b"}"],
)  # fmt: skip
async def test_odd_but_authentic(listener: Listener, body: bytes) -> None:
    """Nothing that Telegram may send is refused, and its bytes are kept."""
    assert (await listener.post(body))[0] == 202
    assert [(arrival.update_id, arrival.body) for arrival in listener.store.arrivals] == [(1, body)]


@pytest.mark.parametrize("error", [StoreUnavailable("away"), StoreFull("full"), StoreError("odd")])
async def test_store_down(listener: Listener, error: StoreError) -> None:
    """503 with Retry-After; nothing counts as accepted."""
    listener.store.error = error
    status, headers, body = await listener.post()
    assert (status, headers["retry-after"]) == (503, "5")
    assert body == b'{"status":"unavailable"}'
    counts = listener.counts
    assert (counts.rejected_, counts.errors, counts.accepted) == (["unavailable"], 1, 0)


async def test_slow_body(listener: Listener, monkeypatch: pytest.MonkeyPatch) -> None:
    """408 when it does not come to its end in time, however it trickles."""
    monkeypatch.setattr(module, "BODY_TIMEOUT", 0.2)
    reader, writer = await listener.connect()
    whole = request()
    writer.write(whole[:-10])
    for byte in whole[-10:-5]:
        writer.write(bytes([byte]))
        await asyncio.sleep(0.01)
    status, _, body = await answer_of(reader)
    assert (status, body) == (408, b'{"status":"timeout"}')
    writer.close()


@pytest.mark.parametrize(
    "method", ["GET", "HEAD", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "X"]
)
@pytest.mark.parametrize("path", ["/hook", "/hook?a=1"])
async def test_other_methods(listener: Listener, method: str, path: str) -> None:
    """405 with the one that is allowed, whatever the secret."""
    status, headers, body = await listener.post(b"", method=method, path=path, headers=())
    assert (status, headers["allow"]) == (405, "POST")
    assert body == (b"" if method == "HEAD" else b'{"status":"method_not_allowed"}')
    assert listener.counts.rejected_ == ["method_not_allowed"]


@pytest.mark.parametrize(
    "path",
    ["/", "/hook/", "//hook", "/hook//", "/hoo", "/HOOK", "/%68ook", "/hook%2F", "/hook%00",
     "/./hook", "/hook;x", "/%FF", "http://bot/hook", "*"],
)  # fmt: skip
async def test_other_paths(listener: Listener, path: str) -> None:
    """404, never a redirect to the right one."""
    status, headers, body = await listener.post(path=path)
    assert (status, body) == (404, b'{"status":"not_found"}')
    assert headers["content-type"] == "application/json"
    assert "location" not in headers


async def test_query_string(listener: Listener) -> None:
    """It is ignored."""
    assert (await listener.post(path="/hook?secret=1&path=/x"))[0] == 202


async def test_lengths_that_contradict(listener: Listener) -> None:
    """400, and the connection ends."""
    data = request().replace(b"Content-Type", b"Transfer-Encoding: chunked\r\nContent-Type")
    status, headers, _ = await listener.raw(data)
    assert (status, headers["connection"]) == (400, "close")
    assert listener.store.arrivals == []


NETWORKS = (ip_network("10.0.0.0/8"), ip_network("2001:db8::/32"))
LOOPBACK = (ip_network("127.0.0.0/8"),)


@pytest.mark.parametrize(
    ("proxies", "forwarded", "status"),
    [
        ((), (), 403),
        ((), (b"10.1.1.1",), 403),
        (LOOPBACK, (), 403),
        (LOOPBACK, (b"10.1.1.1",), 202),
        (LOOPBACK, (b"8.8.8.8, 10.1.1.1",), 202),
        (LOOPBACK, (b"10.1.1.1, 8.8.8.8",), 403),
        (LOOPBACK, (b"10.1.1.1", b"8.8.8.8"), 403),
        (LOOPBACK, (b"8.8.8.8", b"10.1.1.1"), 202),
        (LOOPBACK, (b"10.1.1.1,",), 403),
        (LOOPBACK, (b"nonsense",), 403),
        (LOOPBACK, (b"::ffff:10.1.1.1",), 202),
        (LOOPBACK, (b"2001:db8::1",), 202),
        (LOOPBACK, (b"unix",), 403),
    ],
)
async def test_networks(
    proxies: tuple[Any, ...], forwarded: tuple[bytes, ...], status: int
) -> None:
    """403 outside of them; behind a trusted proxy its last hop counts, and no other."""
    settings = replace(OPEN, trusted_networks=NETWORKS, trusted_proxies=proxies)
    headers = (
        (b"X-Telegram-Bot-Api-Secret-Token", SECRET),
        *((b"X-Forwarded-For", value) for value in forwarded),
    )
    async with listening(settings) as listener:
        found, _, body = await listener.post(headers=headers)
        assert found == status
        if status == 403:
            assert body == b'{"status":"forbidden"}'
            assert (await listener.post(path="/else", headers=headers))[0] == 403
            assert (await listener.post(method="GET", headers=headers))[0] == 403
            assert listener.counts.rejected_ == ["forbidden"] * 3


# --- connections --------------------------------------------------------------------------------


async def test_a_caller_that_goes_away_disturbs_nobody(listener: Listener) -> None:
    """What it had sent whole is stored all the same."""
    listener.store.gate = asyncio.Event()
    _, gone = await listener.connect()
    gone.write(request())
    reader, writer = await listener.connect()
    writer.write(request(BODY.replace(b"42", b"43")))
    await gone.drain()
    gone.close()
    await gone.wait_closed()
    listener.store.gate.set()
    assert (await answer_of(reader))[0] == 202
    writer.close()
    await until(lambda: len(listener.store.arrivals) == 2, 5, "both updates")


async def test_half_a_body_is_no_update(listener: Listener) -> None:
    """It is counted, and answered to nobody."""
    _, writer = await listener.connect()
    writer.write(request()[:-5])
    await writer.drain()
    writer.close()
    await until(lambda: listener.counts.rejected_ == ["disconnected"], 5, "its count")


async def test_pipelined_requests_are_answered_in_order(listener: Listener) -> None:
    """Also those that were refused without a look at their body."""
    reader, writer = await listener.connect()
    wrong = ((b"X-Telegram-Bot-Api-Secret-Token", b"wrong"),)
    writer.write(request() + request(headers=wrong) + request())
    found = [await answer_of(reader) for _ in range(3)]
    assert [json.loads(body)["status"] for _, _, body in found] == [
        "queued",
        "unauthorized",
        "duplicate",
    ]
    writer.close()


async def test_the_username_decides_about_addressed_commands(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """While it is not known they match, with one warning."""
    body = b'{"update_id":1,"message":{"chat":{"id":7},"text":"/go@OtherBot"}}'
    settings = replace(OPEN, rules=(Rule("shop", Match(commands=frozenset({"go"}))),))
    async with listening(settings, "MyBot") as listener:
        assert json.loads((await listener.post(body))[2])["status"] == "ignored"
    async with listening(settings) as listener:
        for expected in ("queued", "duplicate"):
            assert json.loads((await listener.post(body))[2])["status"] == expected
    assert [record.getMessage()[:16] for record in caplog.records] == ["username unknown"]


# --- storing together ---------------------------------------------------------------------------


@dataclass
class Together:
    """A store that takes many at once and notes how many came; it fails for ids in `bad`."""

    bad: set[int] = field(default_factory=set)
    calls: list[list[int]] = field(default_factory=list)
    news_of: list[str] = field(default_factory=list)

    async def accept(self, arrivals: Any, offers: Any = ()) -> list[Accepted]:
        ids = [arrival.update_id for arrival in arrivals]
        self.calls.append(ids)
        await asyncio.sleep(0)
        if self.bad & set(ids):
            raise StoreError("WRONGTYPE")
        return [Accepted(1, ready=("shop",)) for _ in arrivals]

    def offering(self, names: set[str]) -> Any:
        return nullcontext(([], lambda _: None))

    def news(self, names: Any) -> None:
        self.news_of += names

    def turns_fast(self) -> bool:
        return False


def arrival(update_id: int) -> Arrival:
    return Arrival(update_id, "message", "7", 60, b"{}", (Destination("shop", True, 100),))


async def test_updates_that_arrive_together_are_stored_together() -> None:
    """Those that come while a call is under way share the next one."""
    store = Together()
    accepting = Accepting(store, store)
    await asyncio.gather(*(accepting.accept(arrival(n)) for n in range(50)))
    assert [len(ids) for ids in store.calls] == [50]
    assert store.news_of == ["shop"]


async def test_one_damaged_update_refuses_no_other() -> None:
    """Each is then stored on its own."""
    store = Together(bad={3})
    accepting = Accepting(store, store)
    found = await asyncio.gather(
        *(accepting.accept(arrival(n)) for n in range(6)), return_exceptions=True
    )
    assert [isinstance(each, StoreError) for each in found] == [n == 3 for n in range(6)]
