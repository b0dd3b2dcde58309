"""Updates reach the services they are for, each once and as they came."""

import asyncio
from pathlib import Path

import pytest

from system.harness import Daemon, as_telegram_writes, callback, message, route, signed
from targets import Received, Target, answering, hanging
from twr import verify

pytestmark = pytest.mark.anyio


async def test_an_update_reaches_every_route_that_takes_it(short_path: Path) -> None:
    """Routes take what their match says, each its own delivery; the fallback takes the rest."""
    async with Target() as admin, Target() as support, Target() as rest:
        routes = [
            route("admin", admin, match={"commands": ["orders"]}),
            route("support", support, match={"update_types": ["message"]}),
            route("rest", rest, fallback=True),
        ]
        async with Daemon(short_path, routes) as daemon:
            await daemon.accepts(message(1, text="/orders"), deliveries=2)
            await daemon.accepts(message(2), callback(3))
            await support.has(2)
            await rest.has(1)
            await daemon.comes("support", waiting=0, delivered=2)
            await daemon.comes("admin", waiting=0, delivered=1)
            await daemon.comes("rest", waiting=0, delivered=1)
        assert (admin.ids, support.ids, rest.ids) == ([1], [1, 2], [3])


async def test_an_update_without_a_route_is_ignored(short_path: Path) -> None:
    """Nothing is stored of it, and every copy gets the same answer."""
    async with Target() as target:
        only = [route("shop", target, match={"user_ids": [1]})]
        async with Daemon(short_path, only) as daemon:
            for _ in range(2):
                assert await daemon.post(message(1)) == (
                    202,
                    {"status": "ignored", "deliveries": 0},
                )
            assert (await daemon.route("shop"))["waiting"] == 0
        assert target.received == []


async def test_a_delivery_is_the_signed_update_byte_for_byte(short_path: Path) -> None:
    """Odd spacing, escapes, emoji and bytes that are no UTF-8 included."""
    odd = b'{ "update_id" :5,\n"message":{"chat":{"id":7},"text":"\\u001b \xff \xf0\x9f\x8d\xb0"} }'
    async with Target() as target, Daemon(short_path, [route("shop", target)]) as daemon:
        assert await daemon.post(odd) == (202, {"status": "queued", "deliveries": 1})
        (request,) = await target.has(1)
    assert request.body == odd
    assert signed(request)
    assert {name for name, _ in request.headers} == {
        *("Host", "Content-Type", "Content-Length", "User-Agent"),
        *("X-Webhook-Timestamp", "X-Webhook-Signature", "X-Telegram-Update-Id"),
        *("X-Webhook-Route", "X-Webhook-Attempt"),
    }
    assert (request.method, request.path) == ("POST", "/telegram/updates")
    assert request.header("Content-Type") == "application/json"
    assert request.header("X-Webhook-Route") == "shop"
    assert (request.update_id, request.attempt) == (5, 1)


async def test_a_copy_is_a_duplicate(short_path: Path) -> None:
    """A second copy is answered 202 and delivered to nobody."""
    async with Target() as target, Daemon(short_path, [route("shop", target)]) as daemon:
        await daemon.accepts(message(1))
        await daemon.comes("shop", delivered=1)
        assert await daemon.post(message(1)) == (202, {"status": "duplicate", "deliveries": 0})
        await daemon.accepts(message(2))
        await daemon.comes("shop", delivered=2)
    assert target.ids == [1, 2]


async def test_fifty_copies_at_once_are_one_delivery(short_path: Path) -> None:
    """All are answered 202, one of them as queued."""
    async with Target() as target, Daemon(short_path, [route("shop", target)]) as daemon:
        answers = await asyncio.gather(*(daemon.post(message(1)) for _ in range(50)))
        assert {status for status, _ in answers} == {202}
        assert sorted(answer["status"] for _, answer in answers) == ["duplicate"] * 49 + ["queued"]
        await daemon.comes("shop", delivered=1, waiting=0)
    assert target.ids == [1]


async def test_ids_that_fall_are_new_updates(short_path: Path) -> None:
    """After a silent week Telegram begins anew with any id."""
    async with Target() as target, Daemon(short_path, [route("shop", target)]) as daemon:
        await daemon.accepts(message(727334707), message(117314199))
        await daemon.comes("shop", delivered=2)
    assert target.ids == [727334707, 117314199]


async def test_a_chat_keeps_its_order_and_waits_for_no_other(short_path: Path) -> None:
    """One delivery of a chat is in flight at a time, while other chats go on."""
    gate = asyncio.Event()

    async def slow_chat(request: Received, writer: asyncio.StreamWriter) -> bool:
        if request.update["message"]["chat"]["id"] == 1:
            await gate.wait()
        return await answering()(request, writer)

    async with Target(slow_chat) as target, Daemon(short_path, [route("shop", target)]) as daemon:
        await daemon.accepts(message(1, chat=1), message(2, chat=1), message(3, chat=2))
        await daemon.accepts(message(4, chat=2), message(5, chat=1))
        await target.has(3)
        assert sorted(target.ids) == [1, 3, 4]
        gate.set()
        await daemon.comes("shop", delivered=5)
    assert [n for n in target.ids if n in (1, 2, 5)] == [1, 2, 5]


async def test_a_hung_target_slows_nobody(short_path: Path) -> None:
    """With 200 updates waiting on a target that never answers, another gets its own at once."""
    async with Target(hanging()) as hung, Target() as healthy:
        routes = [
            route("hung", hung, match={"update_types": ["message"]}, timeout="30s", concurrency=8),
            route("healthy", healthy, match={"update_types": ["callback_query"]}),
        ]
        async with Daemon(short_path, routes, shutdown_grace="1s") as daemon:
            for n in range(200):
                await daemon.accepts(message(n, chat=n))
            await hung.has(8)
            await daemon.accepts(*(callback(1000 + n, user=n) for n in range(20)))
            await daemon.comes("healthy", within=2, delivered=20)
            assert (await daemon.route("hung"))["processing"] == 8
    assert len(hung.received) == 8


async def test_what_a_target_says_is_not_passed_on(short_path: Path) -> None:
    """Telegram would execute an answer that names a method."""
    command = b'{"method":"sendMessage","chat_id":7,"text":"no"}'
    async with (
        Target(answering(200, command, Content_Type="application/json")) as target,
        Daemon(short_path, [route("shop", target)]) as daemon,
    ):
        assert await daemon.post(message(1)) == (202, {"status": "queued", "deliveries": 1})
        await daemon.comes("shop", delivered=1)


async def test_a_target_with_a_secret_of_its_own_gets_it(short_path: Path) -> None:
    """It stands in Telegram's header; two signing secrets give two signatures, newest first."""
    async with Target() as target:
        one = route("shop", target, secret_token_env="SHOP_TOKEN")
        one["signing_secret_env"] = ["NEW_SIGNING", "SIGNING_SECRET"]
        environ = {"SHOP_TOKEN": "shop-token", "NEW_SIGNING": "newer-secret"}
        async with Daemon(short_path, [one], environ=environ) as daemon:
            await daemon.accepts(message(1))
            (request,) = await target.has(1)
    assert request.header("X-Telegram-Bot-Api-Secret-Token") == "shop-token"
    newest, older = (request.header("X-Webhook-Signature") or "").split(",")
    stamp = request.header("X-Webhook-Timestamp")
    assert verify("newer-secret", request.body, stamp, newest)
    assert verify("signing-secret", request.body, stamp, older)
    assert request.body == as_telegram_writes(message(1))
