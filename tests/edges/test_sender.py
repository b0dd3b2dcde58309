"""POSTs over real sockets."""

import asyncio
import gzip
import time
from collections.abc import AsyncIterator

import pytest

from targets import (
    Behaviour,
    Received,
    Target,
    answering,
    by_turns,
    cutting,
    endless,
    hanging,
    reply,
    saying,
)
from twr.core.outcome import Answer
from twr.edges.sender import EXCERPT, MOST_READ, Sender
from until import until

pytestmark = pytest.mark.anyio

HEADERS = {"Content-Type": "application/json", "X-Webhook-Attempt": "1", "User-Agent": "twr/1"}


@pytest.fixture
async def sender() -> AsyncIterator[Sender]:
    """The connections of a route of four slots."""
    found = Sender(4)
    yield found
    await found.close()


@pytest.fixture
async def target() -> AsyncIterator[Target]:
    async with Target() as found:
        yield found


async def post(sender: Sender, target: Target, body: bytes = b"{}", timeout: float = 5) -> Answer:
    return await sender.post(target.url, body, HEADERS, timeout)


async def test_a_target_gets_these_headers_and_no_others(sender: Sender, target: Target) -> None:
    """Only Host and Content-Length are added."""
    body = b'{"a": "\xff\\u001b"}'
    assert (await post(sender, target, body)).status == 200
    (request,) = target.received
    assert dict(request.headers) == {
        **HEADERS,
        "Host": f"127.0.0.1:{target.port}",
        "Content-Length": str(len(body)),
    }
    assert (request.method, request.path, request.body) == ("POST", "/telegram/updates", body)


@pytest.mark.parametrize("path", ["/", "/a//b/", "/a%2Fb?x=%20&y", "/a/../b", "/%C3%A9"])
async def test_the_path_is_sent_as_it_is_written(sender: Sender, target: Target, path: str) -> None:
    """Nothing is decoded, joined or shortened."""
    url = f"http://127.0.0.1:{target.port}{path}"
    assert (await sender.post(url, b"{}", HEADERS, 5)).status == 200
    assert target.received[0].path == path


async def test_a_large_body_arrives_whole(sender: Sender, target: Target) -> None:
    """Two MiB go without a warning."""
    body = b"x" * (2 * 1024 * 1024)
    assert (await post(sender, target, body)).status == 200
    assert target.received[0].body == body


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_redirects_are_not_followed(sender: Sender, target: Target, status: int) -> None:
    """They come back as they are."""
    async with Target() as elsewhere:
        target.behaviour = answering(status, Location=elsewhere.url)
        assert (await post(sender, target)).status == status
        assert elsewhere.connections == 0


async def test_the_proxies_of_the_environment_are_ignored(
    sender: Sender, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A target is reached directly."""
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    assert (await post(sender, target)).status == 200


async def test_cookies_are_not_kept(sender: Sender, target: Target) -> None:
    """The second request carries none."""
    target.behaviour = answering(200, Set_Cookie="a=b")
    await post(sender, target)
    await post(sender, target)
    assert [request.header("Cookie") for request in target.received] == [None, None]


async def test_connections_are_kept(sender: Sender, target: Target) -> None:
    """Three requests in a row take one."""
    for _ in range(3):
        assert (await post(sender, target)).status == 200
    assert target.connections == 1


async def test_a_kept_connection_that_was_closed_costs_no_attempt(
    sender: Sender, target: Target
) -> None:
    """The request is made again on a new connection, within the same call."""
    target.behaviour = by_turns(answering(), cutting, answering(201))
    assert (await post(sender, target)).status == 200
    assert (await post(sender, target)).status == 201
    assert [request.connection for request in target.received] == [1, 1, 2]


async def test_only_one_more_try_is_made(sender: Sender, target: Target) -> None:
    """A target that closes the new connection too has failed."""
    target.behaviour = by_turns(answering(), cutting)
    await post(sender, target)
    assert await post(sender, target) == Answer(None, "closed without an answer")
    assert len(target.received) == 3


async def test_a_new_connection_that_is_closed_is_a_failure(sender: Sender, target: Target) -> None:
    """Nothing is sent twice on it."""
    target.behaviour = cutting
    assert await post(sender, target) == Answer(None, "closed without an answer")
    assert len(target.received) == 1


async def test_an_answer_that_breaks_off_is_no_stale_connection(
    sender: Sender, target: Target
) -> None:
    """It had begun: the request is not made again within the call."""
    cut = b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nonly this"

    async def reset(_: Received, writer: asyncio.StreamWriter) -> bool:
        writer.write(cut)
        await writer.drain()
        writer.transport.abort()
        return False

    target.behaviour = by_turns(answering(), saying(cut, keep=False), answering(), reset)
    for _ in range(2):
        assert (await post(sender, target)).status == 200
        assert (await post(sender, target)).status is None
    assert len(target.received) == 4


async def test_the_second_try_shares_the_deadline(sender: Sender, target: Target) -> None:
    """It does not get the whole timeout once more."""

    async def cut_late(_: Received, writer: asyncio.StreamWriter) -> bool:
        await asyncio.sleep(0.3)
        return False

    target.behaviour = by_turns(answering(), cut_late, hanging())
    await post(sender, target)
    before = time.monotonic()
    assert await post(sender, target, timeout=0.5) == Answer(None, "timeout after 0.5s")
    assert time.monotonic() - before < 0.8


async def test_idle_connections_are_given_up_early(sender: Sender, target: Target) -> None:
    """Before any usual server tires of them."""
    await post(sender, target)
    await until(lambda: target.open_connections == 0, 5, "a closed connection")


@pytest.mark.parametrize(
    ("behaviour", "error"),
    [
        (hanging(), "timeout after 0.3s"),
        (endless(b"x", pause=0.02), "timeout after 0.3s"),
        (saying(b"HTTP/1.1 200 OK\r\n"), "timeout after 0.3s"),
        (saying(b"SSH-2.0\r\n\r\n", keep=False), "not an HTTP answer"),
        (saying(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nx", keep=False), "answer cut off"),
    ],
    ids=["hanging", "trickling", "half a head", "not http", "cut off"],
)
async def test_no_whole_answer_is_a_failure(
    sender: Sender, target: Target, behaviour: Behaviour, error: str
) -> None:
    """It says in a few words what was wrong."""
    target.behaviour = behaviour
    assert await post(sender, target, timeout=0.3) == Answer(None, error)


async def test_a_closed_port_is_refused(sender: Sender, target: Target) -> None:
    """The words are those of the system, without address or URL."""
    await target.close()
    assert await post(sender, target) == Answer(None, "connection refused")


async def test_an_unknown_host_is_named_so(sender: Sender) -> None:
    """A name that cannot exist is not found."""
    answer = await sender.post("http://host.invalid/", b"{}", HEADERS, 5)
    assert answer == Answer(None, "host name not found")


async def test_the_password_of_a_url_is_sent_and_never_shown(
    sender: Sender, target: Target
) -> None:
    """It becomes a header; an error does not tell it."""
    url = f"http://ada:s%40cret@127.0.0.1:{target.port}/"
    assert (await sender.post(url, b"{}", HEADERS, 5)).status == 200
    assert target.received[0].header("Authorization") == "Basic YWRhOnNAY3JldA=="
    await target.close()
    assert "cret" not in repr(await sender.post(url, b"{}", HEADERS, 5))


async def test_an_answer_is_read_to_64_kib(sender: Sender, target: Target) -> None:
    """An endless one is cut off there, with its connection; the status counts."""
    target.behaviour = endless(b"x" * 4096, status=500)
    answer = await post(sender, target)
    assert (answer.status, len(answer.excerpt)) == (500, EXCERPT)
    await until(lambda: target.open_connections == 0, 5, "a closed connection")


async def test_an_answer_of_64_kib_keeps_its_connection(sender: Sender, target: Target) -> None:
    """To the byte."""
    target.behaviour = answering(200, b"x" * MOST_READ)
    for _ in range(2):
        assert (await post(sender, target)).status == 200
    assert target.connections == 1


async def test_what_a_target_says_comes_as_it_is(sender: Sender, target: Target) -> None:
    """Secrets are masked in it before anything is escaped or cut; bad UTF-8 is replaced."""
    target.behaviour = saying(reply(500, b"a\nb\x1b\xff", reason="Oh\x1bno"))
    assert await post(sender, target) == Answer(500, "HTTP 500 Oh\x1bno", None, "a\nb\x1b\ufffd")


async def test_a_compressed_answer_is_not_unpacked(sender: Sender, target: Target) -> None:
    """A bomb has no effect."""
    bomb = gzip.compress(b"x" * 10_000_000)
    target.behaviour = answering(200, bomb, Content_Encoding="gzip")
    assert (await post(sender, target)).status == 200


async def test_retry_after_comes_as_it_was_sent(sender: Sender, target: Target) -> None:
    """What it means is decided elsewhere."""
    target.behaviour = answering(503, Retry_After="120")
    assert (await post(sender, target)).retry_after == "120"


async def test_a_retired_sender_closes_after_its_last_post(target: Target) -> None:
    """What is in flight ends as it began."""
    gate = asyncio.Event()

    async def behave(request: Received, writer: asyncio.StreamWriter) -> bool:
        await gate.wait()
        return await answering()(request, writer)

    target.behaviour = behave
    sender = Sender(1)
    sender.expect()
    await sender.retire()
    flight = asyncio.create_task(post(sender, target))
    await target.has(1)
    gate.set()
    assert (await flight).status == 200
    await sender.done()
    await until(lambda: target.open_connections == 0, 5, "a closed connection")


async def test_all_slots_may_be_in_use_at_once(target: Target) -> None:
    """And one more, for the probe beside them."""
    target.behaviour = hanging()
    sender = Sender(4)
    flights = [asyncio.create_task(post(sender, target, timeout=1)) for _ in range(5)]
    await target.has(5)
    assert {(await flight).error for flight in flights} == {"timeout after 1s"}
    await sender.close()
