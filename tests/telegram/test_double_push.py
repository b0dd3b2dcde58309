"""The double pushes updates as Telegram does: bytes, order, pace, retries."""

import asyncio
import gzip
import ssl
import time
from collections.abc import AsyncIterator
from itertools import pairwise
from operator import ge
from pathlib import Path

import pytest

from hooks import Hook, Seen, certificate, reply
from twr.core.clock import Clock
from twr.double import Limits, TelegramDouble, sample

pytestmark = pytest.mark.anyio

SCALE = 0.01


class Jump:
    """A monotonic clock that runs, and that can be put forward."""

    def __init__(self) -> None:
        self.ahead = 0.0

    @property
    def clock(self) -> Clock:
        return Clock(time.time, lambda: time.monotonic() + self.ahead)


@pytest.fixture
async def hook() -> AsyncIterator[Hook]:
    async with Hook() as hook:
        yield hook


@pytest.fixture
async def double(hook: Hook) -> AsyncIterator[TelegramDouble]:
    """A double in fast motion, whose webhook is the hook."""
    async with TelegramDouble(time_scale=SCALE) as double:
        double.set_webhook(hook.url, secret_token="s3cret")
        yield double


async def test_request_is_telegrams_byte_for_byte(hook: Hook, double: TelegramDouble) -> None:
    """Headers come in Telegram's order, the body with its newline and its escapes."""
    await double.push(
        {"update_id": 123, "message": {"chat": {"id": 1}, "text": "h\u00e9 \U0001f600/"}}
    )
    body = b'{"update_id":123,\n"message":{"chat":{"id":1},"text":"h\\u00e9 \\ud83d\\ude00/"}}'
    head = (
        "POST /hook HTTP/1.1\r\n"
        f"Host: 127.0.0.1:{hook.port}\r\n"
        "X-Telegram-Bot-Api-Secret-Token: s3cret\r\n"
        "Content-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n"
        "Connection: keep-alive\r\n"
        "Accept-Encoding: gzip, deflate\r\n"
        "\r\n"
    )
    assert hook.seen[0].head.decode() == head
    assert hook.seen[0].body == body


async def test_no_secret_header_without_a_secret(hook: Hook, double: TelegramDouble) -> None:
    """The secret's header is there only if one is set."""
    double.set_webhook(hook.url)
    await double.push()
    assert b"Secret" not in hook.seen[0].head


async def test_raw_bytes_are_sent_as_they_are(hook: Hook, double: TelegramDouble) -> None:
    """An update given in bytes is not written anew, be it valid UTF-8 or not."""
    body = b'{"update_id":9,\n"callback_query":{"from":{"id":1},"data":"\xff\xfe"}}'
    await double.push(body)
    assert hook.seen[0].body == body


async def test_path_and_query_are_kept(hook: Hook, double: TelegramDouble) -> None:
    """The request goes to the URL's own path and query."""
    double.set_webhook(f"http://127.0.0.1:{hook.port}/a/b?x=1&y=%20")
    await double.push()
    assert hook.seen[0].head.startswith(b"POST /a/b?x=1&y=%20 HTTP/1.1\r\n")


async def test_connection_is_kept_and_then_closed_when_idle(
    hook: Hook, double: TelegramDouble
) -> None:
    """Updates share a connection, which is closed after 60 idle seconds."""
    await double.push()
    await double.push()
    assert [seen.connection for seen in hook.seen] == [0, 0]
    await hook.until(lambda: hook.closed == [0])
    assert time.monotonic() - hook.seen[-1].at >= 60 * SCALE


async def test_connection_closed_by_the_webhook_costs_nothing(
    hook: Hook, double: TelegramDouble
) -> None:
    """A webhook may close after its answer; the next update comes on a new connection."""
    hook.answer = reply(200, "OK", Connection="close")
    await double.push()
    await double.push()
    assert [seen.connection for seen in hook.seen] == [0, 1]
    assert [delivery.attempt for delivery in double.deliveries] == [1, 1]


@pytest.mark.parametrize("status", [200, 202, 204, 299])
async def test_success_is_any_2xx(hook: Hook, double: TelegramDouble, status: int) -> None:
    """200 to 299 is delivered."""
    hook.answer = reply(status, "Fine")
    await double.push()
    assert (double.pending, [d.status for d in double.deliveries]) == (0, [status])


@pytest.mark.parametrize("status", [301, 302, 307, 400, 401, 404, 410, 429, 500, 503])
async def test_all_else_is_a_failure(hook: Hook, double: TelegramDouble, status: int) -> None:
    """Any other status fails, is told in last_error_message, and no redirect is followed."""
    hook.answer = reply(status, "Some Reason", Location="/elsewhere")
    double.enqueue()
    await double.until(lambda: len(double.deliveries) == 2)
    assert {delivery.error for delivery in double.deliveries} == {
        f"Wrong response from the webhook: {status} Some Reason"
    }
    assert {seen.head.split(b" ")[1] for seen in hook.seen} == {b"/hook"}
    assert double.pending == 1


CALL = b'{"method":"sendMessage","chat_id":1,"text":"hi"}'
PARTS = (
    b'--b\r\nContent-Disposition: form-data; name="method"\r\n\r\nsendMessage\r\n'
    b'--b\r\nContent-Disposition: form-data; name="chat_id"\r\n\r\n1\r\n--b--\r\n'
)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (
            reply(body=CALL, Content_Type="application/json; charset=utf-8"),
            [{"method": "sendMessage", "chat_id": 1, "text": "hi"}],
        ),
        (
            reply(
                body=gzip.compress(CALL),
                Content_Type="application/json",
                Content_Encoding="gzip",
            ),
            [{"method": "sendMessage", "chat_id": 1, "text": "hi"}],
        ),
        (
            reply(
                body=b"method=sendMessage&chat_id=1",
                Content_Type="application/x-www-form-urlencoded",
            ),
            [{"method": "sendMessage", "chat_id": "1"}],
        ),
        (
            reply(body=PARTS, Content_Type="multipart/form-data; boundary=b"),
            [{"method": "sendMessage", "chat_id": "1"}],
        ),
        (reply(body=CALL, Content_Type="text/plain"), []),
        (reply(body=b'{"status":"queued"}', Content_Type="application/json"), []),
        (reply(body=b'{"method":"setWebhook"}', Content_Type="application/json"), []),
        (reply(body=b"[" * 100_000, Content_Type="application/json"), []),
    ],
)
async def test_method_in_an_answer_is_executed(
    hook: Hook, double: TelegramDouble, answer: bytes, expected: list[dict[str, object]]
) -> None:
    """A 2xx body with a key `method` is carried out as a Bot API call."""
    hook.answer = answer
    await double.push()
    assert double.executed == expected


async def test_method_in_a_failure_is_not_executed(hook: Hook, double: TelegramDouble) -> None:
    """Only a 2xx answer is carried out."""
    hook.answer = reply(500, "Oops", CALL, Content_Type="application/json")
    double.enqueue()
    await double.until(lambda: len(double.deliveries) == 1)
    assert double.executed == []


async def test_chunked_answer(hook: Hook, double: TelegramDouble) -> None:
    """An answer in chunks is read as a whole, and the connection used again."""
    hook.answer = (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2;x=y\r\nde\r\n0\r\n\r\n"
    )
    await double.push()
    await double.push()
    assert [delivery.body for delivery in double.deliveries] == [b"abcde", b"abcde"]
    assert [seen.connection for seen in hook.seen] == [0, 0]


async def test_retries_at_telegrams_pace(hook: Hook, double: TelegramDouble) -> None:
    """A failing update comes again after 0, 2, 4 and 8 s, one request per 2 s at the most."""
    hook.answer = reply(500, "Oops")
    double.enqueue()
    await double.until(lambda: len(double.deliveries) == 5)
    sent = [delivery.sent_at for delivery in double.deliveries]
    pauses = [(after - before) / SCALE for before, after in pairwise(sent)]
    assert all(map(ge, pauses, (1.99, 1.99, 3.99, 7.99)))
    assert [delivery.attempt for delivery in double.deliveries] == [1, 2, 3, 4, 5]


async def test_retry_after_is_honoured(hook: Hook, double: TelegramDouble) -> None:
    """A failure with Retry-After comes again that many seconds later."""
    hook.answer = reply(503, "Busy", Retry_After="20")
    double.enqueue()
    await double.until(lambda: len(double.deliveries) == 2)
    assert double.deliveries[1].sent_at - double.deliveries[0].sent_at >= 20 * SCALE


async def test_queue_holds_its_order(hook: Hook, double: TelegramDouble) -> None:
    """In a chat one update is in flight, and a failing one holds back the ones behind it."""
    refused = {1: 2}

    async def answer(seen: Seen) -> bytes:
        refused[seen.update_id] = refused.get(seen.update_id, 0) - 1
        return reply(500, "Oops") if refused[seen.update_id] >= 0 else reply()

    hook.answer = answer
    for update_id in (1, 2, 3):
        double.enqueue(update_id=update_id, chat_id=-1)
    await double.drained()
    assert hook.ids == [1, 1, 1, 2, 3]
    assert hook.peak == 1


async def test_queues_do_not_wait_for_each_other(hook: Hook, double: TelegramDouble) -> None:
    """A chat whose update hangs stops no other chat, once the webhook is known to work."""
    release = asyncio.Event()

    async def answer(seen: Seen) -> bytes:
        if seen.update_id == 2:
            await release.wait()
        return reply()

    hook.answer = answer
    await double.push(update_id=1, chat_id=-1)
    double.enqueue(update_id=2, chat_id=-1)
    double.enqueue(update_id=3, chat_id=-1)
    await double.push(update_id=4, chat_id=-2)
    assert (double.pending, double.in_flight, hook.ids[-1]) == (2, 1, 4)
    release.set()
    await double.drained()
    assert hook.ids[-1] == 3


async def test_no_more_than_max_connections(hook: Hook, double: TelegramDouble) -> None:
    """With a fresh success, as many requests are in flight as there may be connections."""
    release = asyncio.Event()

    async def answer(seen: Seen) -> bytes:
        if seen.update_id > 1:
            await release.wait()
        return reply()

    hook.answer = answer
    double.set_webhook(hook.url, max_connections=3)
    await double.push(update_id=1)
    for update_id in range(2, 8):
        double.enqueue(update_id=update_id, user_id=update_id)
    await hook.until(lambda: hook.peak == 3)
    release.set()
    await double.drained()
    assert hook.peak == 3


async def test_one_connection_without_a_fresh_success(hook: Hook, double: TelegramDouble) -> None:
    """A webhook that has not answered 2xx in the last 10 s gets one request at a time."""
    hook.answer = reply(500, "Oops")
    for user in range(6):
        double.enqueue(user_id=user + 1)
    await double.until(lambda: len(double.deliveries) == 6)
    sent = [delivery.sent_at for delivery in double.deliveries]
    assert hook.peak == 1
    assert min(after - before for before, after in pairwise(sent)) >= 1.99 * SCALE


async def test_connections_open_ten_at_a_time(hook: Hook) -> None:
    """With a fresh success at most 10 connections open within 0.5 s."""
    release = asyncio.Event()

    async def answer(seen: Seen) -> bytes:
        if seen.update_id > 1:
            await release.wait()
        return reply()

    hook.answer = answer
    async with TelegramDouble(time_scale=0.2) as double:
        double.set_webhook(hook.url)
        await double.push(update_id=1)
        for update_id in range(2, 27):
            double.enqueue(update_id=update_id, user_id=update_id)
        await hook.until(lambda: hook.peak == 25)
        release.set()
        await double.drained()
    starts = sorted({delivery.sent_at for delivery in double.deliveries if delivery.update_id > 2})
    assert all(b - a >= 0.49 * 0.2 for a, b in zip(starts, starts[10:], strict=False))


async def test_refused_heads_stall_the_whole_bot(hook: Hook, double: TelegramDouble) -> None:
    """Only twice max_connections queues are looked at: others wait though they could go."""

    async def answer(seen: Seen) -> bytes:
        return reply() if seen.update_id == 3 else reply(500, "Oops")

    hook.answer = answer
    double.set_webhook(hook.url, max_connections=1)
    for update_id in (1, 2, 3):
        double.enqueue(update_id=update_id, user_id=update_id)
    await double.until(lambda: len(double.deliveries) == 6)
    assert double.loaded_queues == 2
    assert set(hook.ids) == {1, 2}
    assert double.pending == 3


async def test_silent_close_is_no_error(hook: Hook, double: TelegramDouble) -> None:
    """A peer that closes without answering is tried again, and no last_error is set."""
    hook.answer = b""
    double.enqueue()
    await double.until(lambda: len(double.deliveries) == 2)
    assert [(d.status, d.error) for d in double.deliveries] == [(None, None)] * 2
    assert double.pending == 1


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (b"hello\r\n\r\n", "Wrong response from the webhook: not HTTP"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", "Wrong response from the webhook: a "),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n", "Wrong response from"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"x" * 100_000, "Wrong response from the webhook: too long"),
    ],
)
async def test_nonsense_is_an_error(
    hook: Hook, double: TelegramDouble, answer: bytes, error: str
) -> None:
    """An answer that is no HTTP fails with a text of its own."""
    hook.answer = answer
    double.enqueue()
    await double.until(lambda: len(double.deliveries) == 1)
    assert (double.deliveries[0].error or "").startswith(error)


async def test_hung_webhook(hook: Hook) -> None:
    """An answer that takes over 60 s is a failure, and the update is sent again."""

    async def answer(seen: Seen) -> bytes:
        if len(hook.seen) == 1:
            await asyncio.Event().wait()
        return reply()

    hook.answer = answer
    async with TelegramDouble(time_scale=SCALE, limits=Limits(answer=20)) as double:
        double.set_webhook(hook.url)
        await double.push()
        assert [(d.status, d.error) for d in double.deliveries] == [
            (None, "Read timeout expired"),
            (200, None),
        ]
        assert double.deliveries[0].at - double.deliveries[0].sent_at >= 20 * SCALE


async def test_refused_connection() -> None:
    """Nobody listening is told as such."""
    async with Hook() as hook:
        url = hook.url
    async with TelegramDouble(time_scale=SCALE) as double:
        double.set_webhook(url)
        double.enqueue()
        await double.until(lambda: len(double.deliveries) == 1)
        assert double.deliveries[0].error == "Connection refused"


async def test_tls_by_name(tmp_path: Path) -> None:
    """An https URL leads through `resolve` to a TLS server, whose name is checked."""
    context, pem = certificate(tmp_path, "panel.example")
    async with Hook(tls=context) as hook:
        trust = ssl.create_default_context(cadata=pem)
        names = {"panel.example": hook.url, "other.example": hook.url}
        async with TelegramDouble(
            time_scale=SCALE, resolve=names, ssl=trust, local=False
        ) as double:
            double.set_webhook("https://panel.example/hook")
            await double.push()
            assert b"\r\nHost: panel.example\r\n" in hook.seen[0].head
            double.set_webhook("https://other.example/hook")
            double.enqueue()
            await double.until(lambda: len(double.deliveries) == 2)
            assert double.deliveries[-1].error == (
                "SSL error {error:0A000086:SSL routines::certificate verify failed}"
            )


async def test_uploaded_certificate_is_trusted(tmp_path: Path) -> None:
    """A self-signed certificate given to setWebhook is enough."""
    context, pem = certificate(tmp_path, "panel.example")
    async with (
        Hook(tls=context) as hook,
        TelegramDouble(resolve={"panel.example": hook.url}) as double,
    ):
        double.set_webhook("https://panel.example/hook", certificate=pem)
        await double.push()
        assert hook.seen[0].head.startswith(b"POST /hook ")


@pytest.mark.parametrize(
    ("greeting", "error"),
    [(b"HTTP/1.1 400 Bad Request\r\n\r\n", "SSL error {error:0A"), (b"", "Connection timed out")],
)
async def test_no_tls_behind_https(greeting: bytes, error: str) -> None:
    """A server that talks plain HTTP is an SSL error, one that says nothing a timeout."""

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(greeting)
        await reader.read()
        writer.close()

    server = await asyncio.start_server(greet, "127.0.0.1", 0)
    names = {"panel.example": f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"}
    async with server, TelegramDouble(time_scale=SCALE, resolve=names) as double:
        double.set_webhook("https://panel.example/hook")
        double.enqueue()
        await double.until(lambda: len(double.deliveries) == 1)
        assert (double.deliveries[0].error or "").startswith(error)


async def test_change_of_url_sends_again_what_was_in_flight(
    hook: Hook, double: TelegramDouble
) -> None:
    """A new URL gets the update that the old one has not answered."""

    async def hang(seen: Seen) -> bytes:
        await asyncio.Event().wait()
        return reply()

    hook.answer = hang
    update_id = double.enqueue()
    await hook.until(lambda: len(hook.seen) == 1)
    async with Hook() as other:
        double.set_webhook(other.url)
        await double.drained()
        assert (hook.ids, other.ids) == ([update_id], [update_id])


async def test_resolve_may_change_while_running(hook: Hook) -> None:
    """A name that moves leads new connections to its new place."""
    async with (
        Hook(answer=reply(301, "Moved", Connection="close")) as old,
        TelegramDouble(time_scale=SCALE, resolve={"panel.example": old.url}) as double,
    ):
        double.set_webhook("https://panel.example/hook")
        double.enqueue()
        await double.until(lambda: len(double.deliveries) == 1)
        double.resolve["panel.example"] = f"http://127.0.0.1:{hook.port}"
        await double.drained()
        assert len(hook.seen) == 1


async def test_gone_for_a_day_deletes_the_webhook(hook: Hook) -> None:
    """410 for more than 23 h removes the webhook; its updates stay pending."""
    jump = Jump()
    hook.answer = reply(410, "Gone")
    async with TelegramDouble(time_scale=SCALE, clock=jump.clock) as double:
        double.set_webhook(hook.url)
        double.enqueue(user_id=1)
        await double.until(lambda: len(double.deliveries) == 1)
        jump.ahead = 22.9 * 3600 * SCALE
        double.enqueue(user_id=2)
        await double.until(lambda: len(double.deliveries) >= 3)
        assert double.webhook is not None
        jump.ahead = 23.1 * 3600 * SCALE
        double.enqueue(user_id=3)
        await double.until(lambda: double.webhook is None)
        assert double.pending == 3


async def test_updates_expire(hook: Hook) -> None:
    """An update that still fails when its time is over is dropped."""
    jump = Jump()
    hook.answer = reply(500, "Oops")
    async with TelegramDouble(time_scale=SCALE, clock=jump.clock) as double:
        double.set_webhook(hook.url)
        query = double.enqueue("inline_query", user_id=1)
        await double.until(lambda: len(double.deliveries) == 1)
        jump.ahead = 31 * SCALE
        await double.until(lambda: double.dropped == [(query, "expired")])
        assert double.pending == 0


async def test_updates_expire_in_the_backlog(hook: Hook) -> None:
    """What was never sent is dropped, not sent, when its time is over."""
    jump = Jump()
    async with TelegramDouble(time_scale=SCALE, clock=jump.clock) as double:
        query = double.enqueue("callback_query")
        jump.ahead = 151 * SCALE
        double.set_webhook(hook.url)
        await double.until(lambda: double.dropped == [(query, "expired")])
        await double.push()
        assert query not in hook.ids


async def test_types_not_asked_for_are_not_sent(hook: Hook, double: TelegramDouble) -> None:
    """Updates of a type outside allowed_updates never come into being."""
    left_out = double.enqueue("message_reaction")
    double.set_webhook(hook.url, allowed_updates=["message_reaction"])
    also = double.enqueue("message")
    sent = double.enqueue("message_reaction")
    await double.drained()
    assert hook.ids == [sent]
    assert double.dropped == [(left_out, "not allowed"), (also, "not allowed")]


async def test_more_than_a_hundred_thousand_are_lost() -> None:
    """Over 100,000 pending updates are lost without a word."""
    async with TelegramDouble() as double:
        for number in range(100_001):
            double.enqueue(b'{"update_id":%d,\n"message":{}}' % number)
        assert double.pending == 100_000
        assert double.dropped == [(100_000, "overflow")]


async def test_what_a_test_waited_for_in_vain_is_told() -> None:
    """A wait that times out says what the double has seen so far."""
    async with TelegramDouble() as double:
        double.enqueue(sample("message", 5))
        with pytest.raises(TimeoutError, match="pending 1, in flight 0"):
            await double.drained(timeout=0.05)
