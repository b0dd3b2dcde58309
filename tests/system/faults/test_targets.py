"""Targets that answer what they should not, or fail for some and not for others."""

import asyncio
import json
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from system.faults.conftest import StartServer
from system.faults.tools import hand_over_all, percentile
from system.faults.wire import Wire
from system.harness import (
    SECRET,
    SECRET_HEADER,
    Daemon,
    as_telegram_writes,
    message,
    route,
    signed,
)
from targets import Received, Target, answering, by_turns, hanging, held, late
from until import until

pytestmark = pytest.mark.anyio

QUICK = {"backoff": {"first": "50ms", "factor": 1, "max": "10s", "jitter": 0}}


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_to_a_good_page(status: int, short_path: Path) -> None:
    """It is a failed attempt: the place it names is never asked, and the body is not lost."""
    async with Target() as elsewhere:
        first = answering(status, b"moved", Location=elsewhere.url)
        async with (
            Target(by_turns(first, first, answering())) as target,
            Daemon(short_path, [route("shop", target, **QUICK)]) as daemon,
        ):
            await daemon.accepts(message(1))
            await daemon.comes("shop", delivered=1, failed_attempts=2, waiting=0)
        assert [request.attempt for request in target.received] == [1, 2, 3]
        assert len({request.body for request in target.received}) == 1
    assert elsewhere.connections == 0


BODIES = (
    rb'{"update_id":ID,"message":{"text":"\u001b[31m \u0416 \/ \ud83c\udf70"}}',
    '{"update_id":ID,"message":{"text":"🍰 é e\u0301 \u202e"}}'.encode(),
    b'\t{ "update_id" :ID ,\r\n "message" : { } } \n',
    b'{"update_id":ID,"callback_query":{"id":"1","data":"\xff\xfe\xc3"}}',
    rb'{"update_id":ID,"message":{"text":"\ud800"}}',
    b'{"update_id":0,"update_id":ID,"message":{"text":"a","text":"b"}}',
    b'{"update_id":ID,"message":{"message_id":1e400,"date":-0,"x":4503599627370495.0}}',
    rb'{"update_id":ID,"message":{"text":"\u0000"}}' + b" " * 10,
    b'{"update_id":ID,"x":' + b"[" * 900 + b"]" * 900 + b"}",
    b'{"update_id":ID,"message":{"text":"' + b"x" * 500_000 + b'"}}',
)


async def test_bytes_that_change_when_they_are_read(short_path: Path) -> None:
    """Escapes, emoji, odd spacing, bad UTF-8: what is signed and sent are the bytes that came,
    also in a retry, after a crash, and when a dead letter is replayed."""
    bodies = {n: body.replace(b"ID", b"%d" % n) for n, body in enumerate(BODIES, 1)}
    turns = {n: by_turns(answering(500), hanging(), answering(400), answering()) for n in bodies}

    async def in_turn(request: Received, writer: asyncio.StreamWriter) -> bool:
        return await turns[request.update_id](request, writer)

    async with (
        Target(in_turn) as target,
        Daemon(short_path, [route("shop", target, order="none", **QUICK)]) as daemon,
    ):
        for body in bodies.values():
            assert await daemon.post(body) == (202, {"status": "queued", "deliveries": 1})
        await target.has(2 * len(bodies))
        await daemon.kill()
        await daemon.start()
        await daemon.comes("shop", dead=len(bodies), waiting=0)
        store = daemon.open_store()
        for n in bodies:
            replayed = await store.dead_letters.replay(f"{n}/shop", "shop", ordered=False)
            assert replayed == "replayed"
        await store.close()
        await target.has(4 * len(bodies))
        await daemon.comes("shop", waiting=0, dead=0)
    for request in target.received:
        assert request.body == bodies[request.update_id]
        assert signed(request)
    assert Counter(target.ids) == dict.fromkeys(bodies, 4)


COMMAND = {"method": "sendMessage", "chat_id": 7, "text": "no"}
ANSWERS = {
    "json": answering(200, json.dumps(COMMAND).encode(), Content_Type="application/json"),
    "form": answering(
        200, b"method=sendMessage&chat_id=7", Content_Type="application/x-www-form-urlencoded"
    ),
    "multipart": answering(
        200,
        b'--x\r\nContent-Disposition: form-data; name="method"\r\n\r\nsendMessage\r\n--x--\r\n',
        Content_Type="multipart/form-data; boundary=x",
    ),
    "failure": answering(500, json.dumps(COMMAND).encode(), Content_Type="application/json"),
    "header": answering(200, b"", Method="sendMessage", X_Method="sendMessage"),
}


async def told(daemon: Daemon, update: dict[str, Any]) -> tuple[int, list[Any], bytes]:
    """The whole answer to an update: status, headers but the date, body."""
    async with daemon.session.post(
        daemon.url, data=as_telegram_writes(update), headers={SECRET_HEADER: SECRET}
    ) as response:
        headers = [pair for pair in response.raw_headers if pair[0].lower() != b"date"]
        return response.status, headers, await response.read()


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS.keys())
async def test_a_command_in_an_answer(answer: Any, short_path: Path) -> None:
    """Telegram executes what an answer names as `method`: ours is to the byte the same whatever a
    target says, the first time and for every copy."""
    async with Target(answer) as target, Target() as plain:
        routes = [
            route("shop", target, max_attempts=1, match={"chat_ids": [7]}),
            route("plain", plain, match={"chat_ids": [8]}),
        ]
        async with Daemon(short_path, routes) as daemon:
            queued = await told(daemon, message(2, chat=8))
            assert queued[0::2] == (202, b'{"status":"queued","deliveries":1}')
            assert await told(daemon, message(1)) == queued
            await daemon.comes("shop", waiting=0)
            await daemon.comes("plain", delivered=1)
            duplicate = await told(daemon, message(2, chat=8))
            assert duplicate[0::2] == (202, b'{"status":"duplicate","deliveries":0}')
            for _ in range(3):
                assert await told(daemon, message(1)) == duplicate
        assert (target.ids, plain.ids) == ([1], [2])


def arrived(target: Target, update_id: int) -> bool:
    return update_id in target.ids


async def test_a_failing_update_does_not_block_the_others(short_path: Path) -> None:
    """100 chats whose updates are answered 500 at once, again and again: a good one of another
    chat is delivered at once, and so is the next of those chats when the first is given up."""

    async def refuse(request: Received, writer: asyncio.StreamWriter) -> bool:
        bad = request.update_id < 1000
        return await answering(500 if bad else 200)(request, writer)

    shop = {"max_attempts": 15, "backoff": {"first": "300ms", "factor": 1, "max": "1s"}}
    async with Target(refuse) as target, Daemon(short_path, [route("shop", target, **shop)]) as one:
        await hand_over_all(one, (message(n, chat=n) for n in range(1, 101)))
        await target.has(100)
        for n in range(1000, 1020):
            began = time.monotonic()
            await one.accepts(message(n, chat=n))
            await until(partial(arrived, target, n), 2, "the good update")
            assert time.monotonic() - began < 1
        await one.comes("shop", delivered=20, waiting=100, dead=0)
        await hand_over_all(one, (message(2000 + n, chat=n) for n in range(1, 101)))
        await one.comes("shop", within=20, dead=100, delivered=120, waiting=0)
        assert (await one.route("shop"))["breaker"] == "closed"


async def test_a_thousand_that_fail_together(short_path: Path, start_server: StartServer) -> None:
    """1,000 updates that fail at once do not come back at once: each waits for a time of its own,
    and no tenth of the jitter's range has more than twice its share of them."""
    server = start_server("redis", "--appendonly", "no")
    backoff = {"first": "4s", "factor": 1, "max": "10m", "jitter": 0.5}
    async with (
        Target(answering(500)) as target,
        Daemon(
            short_path, [route("shop", target, backoff=backoff)], store_url=server.url
        ) as daemon,
    ):
        await hand_over_all(daemon, (message(n, chat=n) for n in range(1000)))
        await target.has(1000)
        target.behaviour = answering()
        await daemon.comes("shop", within=15, delivered=1000, waiting=0)
    first = {request.update_id: request.at for request in target.received if request.attempt == 1}
    waited = [
        request.at - first[request.update_id] for request in target.received if request.attempt == 2
    ]
    assert len(waited) == 1000
    assert min(waited) >= 2
    tenths = Counter(int((seconds - 2) / 0.4) for seconds in waited)
    assert max(tenths.values()) <= 200


async def test_a_thousand_asked_to_come_back_together(
    short_path: Path, start_server: StartServer
) -> None:
    """An overloaded target that asks all to come back in 1 s is tried by one, and when that is
    answered by one more with each answer, not by all at once."""
    server = start_server("redis", "--appendonly", "no")
    breaker = {"failures": 5, "cooldown": "1s", "max_cooldown": "1s"}
    async with (
        Target(answering(503, Retry_After="1")) as target,
        Daemon(
            short_path,
            [route("shop", target, breaker=breaker, concurrency=100)],
            store_url=server.url,
        ) as daemon,
    ):
        await hand_over_all(daemon, (message(n, chat=n) for n in range(1000)))
        await daemon.comes("shop", breaker="open")
        before = len(target.received)
        assert before < 200
        target.behaviour, target.most_at_once = late(0.05), 0
        await target.has(before + 20)
        assert target.most_at_once <= 20
        at = [request.at for request in target.received[before:]]
        assert at[1] - at[0] >= 0.05
        assert at[3] - at[0] >= 0.1
        await daemon.comes("shop", within=30, waiting=0, dead=0)
    assert sorted(set(target.ids)) == list(range(1000))


async def lags(daemon: Daemon, target: Target, first: int, count: int) -> list[float]:
    """How long each of so many updates takes from being sent to its delivery, in seconds."""
    sent: dict[int, float] = {}
    for n in range(first, first + count):
        sent[n] = time.monotonic()
        await daemon.accepts(message(n, chat=n))
        await asyncio.sleep(0.01)
    await until(lambda: set(sent) <= set(target.ids), 10, "all of them")
    arrived = {request.update_id: request.at for request in target.received}
    return [arrived[n] - at for n, at in sent.items()]


async def test_a_hung_target_with_a_long_queue(short_path: Path, start_server: StartServer) -> None:
    """Route A hangs with 5,000 queued: the p99 of route B rises by less than 50 ms."""
    server = start_server("valkey", "--appendonly", "yes", "--appendfsync", "everysec")
    gate = asyncio.Event()
    async with Target(held(gate)) as hung, Target() as healthy:
        a = route("a", hung, match={"chat_types": ["group"]}, timeout="60s")
        b = route("b", healthy, match={"chat_types": ["private"]}, order="none")
        async with Daemon(
            short_path, [a, b], store_url=server.url, shutdown_grace="100ms"
        ) as daemon:
            await lags(daemon, healthy, 0, 50)
            before = percentile(await lags(daemon, healthy, 1000, 300), 0.99)
            groups = (message(10_000 + n, chat=n % 1000 + 1) for n in range(5000))
            for update in groups:
                update["message"]["chat"]["type"] = "group"
                await daemon.accepts(update)
            await hung.has(32)
            during = percentile(await lags(daemon, healthy, 20_000, 300), 0.99)
            assert during - before < 0.05
            row = await daemon.route("a")
            assert (row["processing"], row["waiting"]) == (32, 5000)


async def test_connections_that_lose_packets_to_one_target(short_path: Path) -> None:
    """A target behind a dead line pauses its own route; the others go on, and when the line is
    back it gets all that waited, each once or, where the answer was lost, twice."""
    async with Target() as far, Target() as near, Wire(far.port) as wire:
        breaker = {"failures": 3, "cooldown": "300ms", "max_cooldown": "300ms"}
        routes = [
            route("far", wire.target_url, timeout="500ms", breaker=breaker, **QUICK),
            route("near", near),
        ]
        async with Daemon(short_path, routes) as daemon:
            await daemon.accepts(message(1), deliveries=2)
            await far.has(1)
            wire.drop()
            await daemon.accepts(*(message(n, chat=n) for n in range(2, 32)), deliveries=2)
            await daemon.comes("near", delivered=31)
            await daemon.comes("far", breaker="open")
            wire.heal()
            await daemon.comes("far", waiting=0, dead=0, breaker="closed")
            wire.cut()
            wire.answers.stop()
            await daemon.accepts(message(100), deliveries=2)
            await far.has(len(far.received) + 1)
            wire.cut()
            wire.heal()
            await daemon.comes("far", waiting=0, dead=0)
        assert set(far.ids) == {*range(1, 32), 100}
        assert sorted(near.ids) == [*range(1, 32), 100]
