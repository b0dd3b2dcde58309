"""Whatever is sent to the public listener gets one of its answers, or the server's own refusal."""

import itertools
import json
import logging
import re
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import anyio
import pytest
import uvloop
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from twr.config.model import Listen
from twr.core.jobs import Accepted, Arrival, Destination
from twr.core.matching import Match, Rule
from twr.edges.sockets import bind
from twr.services import ingress

SECRET = b"the-secret"
MAX_BODY = 2000
WORDS = {
    202: {"queued", "duplicate", "ignored"},
    400: {"invalid"},
    401: {"unauthorized"},
    404: {"not_found"},
    405: {"method_not_allowed"},
    413: {"too_large"},
    505: {"http_version_not_supported"},
}
# What Hypercorn says, without a body, to what is no HTTP.
OWN = {400, 404, 431, 501}

FUZZ = settings(
    max_examples=400,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


class Counts:
    """Counts nothing."""

    def received(self, outcome: str) -> None:
        pass

    def rejected(self, reason: str) -> None:
        pass

    def store_error(self) -> None:
        pass


@dataclass
class Memory:
    """A store that takes each id once."""

    seen: set[int] = field(default_factory=set, repr=False)
    last: bytes = b""

    async def accept(self, arrival: Arrival) -> Accepted:
        if arrival.update_id in self.seen:
            return Accepted(None)
        self.seen.add(arrival.update_id)
        self.last = arrival.body
        return Accepted(len(arrival.destinations))


@dataclass(frozen=True)
class Listener:
    """A listener on a thread of its own."""

    port: int
    store: Memory = field(repr=False)

    def raw(self, *pieces: bytes) -> bytes:
        """All that comes back for the pieces, each sent by itself, to the end of the connection;
        raises TimeoutError when it does not end."""
        answer = b""
        with socket.create_connection(("127.0.0.1", self.port), 10) as sock:
            try:
                for piece in pieces:
                    sock.sendall(piece)
                sock.shutdown(socket.SHUT_WR)
                while data := sock.recv(65536):
                    answer += data
            except TimeoutError:
                raise
            except OSError:
                pass  # it was closed before we were done
        return answer

    def post(self, body: bytes) -> tuple[int, str]:
        """The answer to a body sent as Telegram does."""
        head = b"Content-Length: %d\r\nConnection: close\r\n" % len(body)
        [(status, word)] = answers(self.raw(REQUEST + head + b"\r\n" + body))
        return status, word


REQUEST = (
    b"POST /hook HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    b"X-Telegram-Bot-Api-Secret-Token: " + SECRET + b"\r\n"
)


@pytest.fixture(scope="module")
def listener() -> Iterator[Listener]:
    """A listener with one route for messages, for all examples."""
    store = Memory()
    sock = bind(Listen(host="127.0.0.1", port=0))
    port = sock.getsockname()[1]
    given = ingress.Dependencies(
        settings=lambda: OPEN,
        username=lambda: "shop_bot",
        store=store,
        measures=Counts(),
        accepted=lambda: None,
        unauthorized=lambda: None,
    )
    loop = uvloop.new_event_loop()
    stop: list[anyio.Event] = []

    async def serve() -> None:
        stop.append(anyio.Event())
        await ingress.run(given, sock, stop[0])

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    yield Listener(port, store)
    loop.call_soon_threadsafe(lambda: stop[0].set())
    thread.join(30)
    loop.close()


OPEN = ingress.Settings(
    path="/hook",
    max_body=MAX_BODY,
    trusted_networks=None,
    trusted_proxies=(),
    secrets=(SECRET,),
    rules=(Rule("shop", Match(update_types=frozenset({"message"}))),),
    destinations={"shop": Destination("shop", True, 100)},
)


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Nobody can make the listener say anything."""
    with caplog.at_level(logging.WARNING):
        yield
    assert [record.getMessage() for record in caplog.records] == []


_HEAD = re.compile(rb"HTTP/1\.1 (\d{3}) [^\r\n]*\r\n((?:[^\r\n]+\r\n)*)\r\n")


def answers(data: bytes) -> list[tuple[int, str]]:
    """Each final answer as status and word, checked for being one that is allowed."""
    found = []
    while data:
        match = _HEAD.match(data)
        assert match, data
        status, headers = int(match[1]), match[2].lower()
        length = int(headers.partition(b"content-length: ")[2].partition(b"\r\n")[0] or 0)
        body, data = data[match.end() :][:length], data[match.end() + length :]
        if status != 100:
            found.append((status, _word(status, body)))
    return found


def _word(status: int, body: bytes) -> str:
    if not body:
        assert status in OWN
        return ""
    answer = json.loads(body)
    assert answer["status"] in WORDS[status]
    assert answer.keys() <= {"status", "deliveries"}
    assert isinstance(answer["status"], str)
    return str(answer["status"])


# --- bodies -------------------------------------------------------------------------------------

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**80), 2**80)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8)
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(
                ["chat", "from", "id", "text", "entities", "message", "type", "offset", "length",
                 "is_topic_message", "message_thread_id", "data", "caption", "sender_chat"]
            )
            | st.text(max_size=4),
            inner,
            max_size=5,
        )
    ),
    max_leaves=20,
)  # fmt: skip
TYPES = st.just("message") | st.sampled_from(
    ["edited_message", "callback_query", "inline_query", "poll", "poll_answer",
     "message_reaction", "chat_boost", "business_message", "never_heard_of", ""]
)  # fmt: skip
IDS = st.integers(0, 2**63 - 1)


@FUZZ
@given(update_id=IDS, kind=TYPES, value=VALUES, ascii_only=st.booleans())
def test_any_update_is_taken(
    listener: Listener, update_id: int, kind: str, value: Any, ascii_only: bool
) -> None:
    """A JSON object with a whole number as update_id, whatever else it holds."""
    update = {"update_id": update_id, kind: value}
    body = json.dumps(update, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
    if len(body) > MAX_BODY:
        assert listener.post(body) == (413, "too_large")
        return
    status, word = listener.post(body)
    event(word)
    assert status == 202
    if word == "queued":
        assert listener.store.last == body


@FUZZ
@given(body=st.binary(max_size=200) | VALUES.map(lambda it: json.dumps(it).encode()))
def test_any_body_gets_an_answer(listener: Listener, body: bytes) -> None:
    """Bytes of any kind, and JSON that is no update."""
    status, word = listener.post(body)
    event(word)
    assert (status == 202) == (word != "invalid")


@FUZZ
@given(
    update=st.just(b'{"update_id":5,\n"message":{"chat":{"id":7},"text":"/start \\ud83d\\ude00"}}'),
    cuts=st.lists(st.tuples(st.integers(0, 70), st.integers(0, 4), st.binary(max_size=3))),
)
def test_a_damaged_update_gets_an_answer(
    listener: Listener, update: bytes, cuts: list[tuple[int, int, bytes]]
) -> None:
    """Bytes of it left out, changed, put in."""
    for at, length, instead in cuts:
        update = update[:at] + instead + update[at + length :]
    status, word = listener.post(update)
    event(word)
    assert status in (202, 400)


# --- requests -----------------------------------------------------------------------------------


def mostly(usual: bytes, *others: bytes) -> st.SearchStrategy[bytes]:
    """Nearly always the usual one, so that what is wrong is wrong alone."""
    return st.integers(0, 7).flatmap(
        lambda n: st.sampled_from(others) if n == 7 else st.just(usual)
    )


METHODS = mostly(b"POST", b"GET", b"HEAD", b"OPTIONS", b"PRI", b"post", b"", b"P\x00ST")
TARGETS = mostly(
    b"/hook", b"/hook?a=1", b"/", b"*", b"/hook/", b"//hook", b"/%zz", b"/\xff", b"", b"hook",
     b"http://x/hook", b"http://[x/hook", b"http://", b"/hook#a", b"/ho\x00ok", b"/" + b"a" * 9000
)  # fmt: skip
VERSIONS = mostly(b"HTTP/1.1", b"HTTP/1.0", b"HTTP/2.0", b"HTTP/1.11", b"http/1.1", b"")
TOKENS = mostly(b"the-secret", b"", b"wrong", b"the-secret\xe9", b"the-secret, the-secret")
FRAMINGS = st.sampled_from(
    [
        (b"Content-Length", b"2"),
        (b"Content-Length", b"20"),
        (b"Content-Length", b"-1"),
        (b"Content-Length", b"9" * 30),
        (b"Content-Length", b"2, 2"),
        (b"Content-Length", b""),
        (b"Transfer-Encoding", b"chunked"),
        (b"Transfer-Encoding", b"chunked, chunked"),
        (b"Transfer-Encoding", b"identity"),
        (b"transfer-encoding", b"\tchunked "),
    ]
)
OTHERS = st.tuples(
    st.sampled_from(
        [b"Host", b"Expect", b"Connection", b"Upgrade", b"X-Forwarded-For", b"Content-Type",
         b"Content-Encoding", b"Sec-WebSocket-Key", b"Sec-WebSocket-Version", b"A b", b"", b"Te"]
    ),
    st.sampled_from(
        [b"x", b"100-continue", b"close", b"Upgrade", b"websocket", b"gzip", b"13", b"",
         b"a\x00b", b"a\rb", b"a\n b", b"\xff", b"127.0.0.1", b"x" * 5000]
    ),
)  # fmt: skip
SEPARATORS = mostly(b": ", b":", b" : ", b":\r\n ")
BODIES = st.sampled_from(
    [b"", b"{}", b'{"update_id":1}', b'{"update_id":2,"message":{}}', b"2\r\n{}\r\n0\r\n\r\n",
     b"zz\r\n", b"2;a=b\r\n{}\r\n0\r\nA: b\r\n\r\n", b"0\r\n\r\n", b"\x00" * 3000]
)  # fmt: skip


@st.composite
def requests(draw: st.DrawFn) -> bytes:
    """A request in which anything may be wrong."""
    headers = [(b"Host", b"x"), (b"X-Telegram-Bot-Api-Secret-Token", draw(TOKENS))]
    body = draw(BODIES)
    if draw(st.integers(0, 3)):
        headers.append((b"Content-Length", b"%d" % len(body)))
    else:
        headers += draw(st.lists(FRAMINGS, max_size=2))
    if draw(st.booleans()):
        headers += draw(st.lists(OTHERS, max_size=2))
    lines = [name + draw(SEPARATORS) + value for name, value in draw(st.permutations(headers))]
    first = b" ".join([draw(METHODS), draw(TARGETS), draw(VERSIONS)])
    return draw(mostly(b"\r\n", b"\n")).join([first, *lines, b"", b""]) + body


@FUZZ
@given(
    made=st.lists(requests(), min_size=1, max_size=3),
    cuts=st.lists(st.integers(0, 400), max_size=3),
)
def test_any_request_gets_an_answer(listener: Listener, made: list[bytes], cuts: list[int]) -> None:
    """Requests in a row on one connection, in pieces, with all that can be wrong about them; and
    the next caller is served as ever."""
    data = b"".join(made)
    bounds = [0, *sorted(cuts), len(data)]
    pieces = [data[start:end] for start, end in itertools.pairwise(bounds)]
    answer = listener.raw(*pieces)
    if b"HEAD " not in data:
        found = answers(answer)
        event(" ".join(str(status) for status, _ in found))
        assert len(found) <= len(made) + 1
    assert b"HTTP/1.1 500" not in answer
    assert listener.post(b"[]") == (400, "invalid")
