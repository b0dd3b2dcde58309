"""Updates that are odd, ids that fall, callers that lie."""

import json
from pathlib import Path
from typing import Any

import pytest

from system.harness import SECRET, SECRET_HEADER, Daemon, as_telegram_writes, message, route
from targets import Target

pytestmark = pytest.mark.anyio


async def test_ids_that_fall_after_a_silent_week(short_path: Path) -> None:
    """727334707, then 117314199: both are delivered, also with a restart between them, and the
    copies of either are duplicates."""
    async with Target() as target, Daemon(short_path, [route("shop", target)]) as daemon:
        await daemon.accepts(message(727334707), message(117314199))
        await daemon.comes("shop", delivered=2)
        assert await daemon.stop() == 0
        await daemon.start()
        await daemon.accepts(message(0), message(2**63 - 1), message(1), message(117314198))
        await daemon.comes("shop", delivered=4)
        for update_id in (727334707, 117314199, 0, 2**63 - 1):
            status, body = await daemon.post(message(update_id))
            assert (status, body["status"]) == (202, "duplicate")
    assert target.ids == [727334707, 117314199, 0, 2**63 - 1, 1, 117314198]


CHAT = {"id": -1001, "type": "supergroup"}
ODD: dict[str, Any] = {
    "no from": {"channel_post": {"message_id": 1, "chat": CHAT, "text": "/start x"}},
    "unknown type": {"telepathy": {"from": {"id": 7}, "thought": "x"}},
    "nothing": {},
    "null": {"message": None},
    "a list": {"message": []},
    "a text": {"message": "hello"},
    "a number": {"callback_query": 5},
    "two types": {"message": {"chat": CHAT}, "poll": {"id": "5"}},
    "wrong kinds": {"message": {"from": [], "chat": "x", "text": 7, "entities": {"a": 1}}},
    "huge ids": {"message": {"from": {"id": 10**30}, "chat": {"id": -(10**30)}}},
    "entities out of range": {
        "message": {
            "chat": CHAT,
            "text": "/a",
            "entities": [{"type": "bot_command", "offset": 0, "length": 10**9}, None, 5],
        }
    },
    "a key of bytes": {"\ud800\x00": {"chat": CHAT}},
    "a very long type": {"x" * 100_000: {}},
    "a lane of odd letters": {"poll": {"id": "a b\n:{}*\u0000"}},
}


async def test_odd_updates(short_path: Path) -> None:
    """An update without `from`, of an unknown type, or with fields of the wrong kind: each is
    answered 2xx and delivered as it came, and the next one flows."""
    shop = [
        route("all", "http://127.0.0.1:9"),
        route("picky", "http://127.0.0.1:9", match={"user_ids": [7], "commands": ["start"]}),
        route(
            "not", "http://127.0.0.1:9", **{"except": {"chat_ids": [5], "start_prefixes": ["x"]}}
        ),
    ]
    async with Target() as target:
        for one in shop:
            one["target_url"] = target.url
        async with Daemon(short_path, shop) as daemon:
            for n, fields in enumerate(ODD.values()):
                status, answer = await daemon.post({"update_id": 10 * n, **fields})
                assert (status, answer["status"]) == (202, "queued")
                await daemon.accepts(message(10 * n + 1, chat=8), deliveries=2)
            await daemon.comes("all", delivered=2 * len(ODD), waiting=0)
            await daemon.comes("not", waiting=0)
    seen = {r.update_id: r.body for r in target.received if r.header("X-Webhook-Route") == "all"}
    wanted = [{"update_id": 10 * n, **fields} for n, fields in enumerate(ODD.values())]
    wanted += [message(10 * n + 1, chat=8) for n in range(len(ODD))]
    assert seen == {update["update_id"]: as_telegram_writes(update) for update in wanted}


TELEGRAM = "149.154.167.50"
STRANGER = "203.0.113.9"
FORGED = [TELEGRAM, f"{TELEGRAM}, {TELEGRAM}", f'for="{TELEGRAM}"', f" {TELEGRAM} ", f"{TELEGRAM},"]


async def calls(daemon: Daemon, *forwarded: str, **others: str) -> int:
    """The status for a caller with these X-Forwarded-For headers."""
    headers = [(SECRET_HEADER, SECRET), *(("X-Forwarded-For", value) for value in forwarded)]
    headers += [(name.replace("_", "-"), value) for name, value in others.items()]
    async with daemon.session.post(
        daemon.url, data=as_telegram_writes(message(1)), headers=headers
    ) as response:
        status = response.status
        answer = json.loads(await response.read())
    assert answer["status"] in ("forbidden", "queued", "duplicate")
    return status


async def test_a_forged_address_without_a_trusted_proxy(short_path: Path) -> None:
    """X-Forwarded-For and its kin mean nothing when no proxy is trusted: only the peer counts."""
    settings: dict[str, Any] = {"trusted_networks": ["telegram"]}
    async with Target() as target, Daemon(short_path, [route("shop", target)], **settings) as one:
        for forged in FORGED:
            assert await calls(one, forged) == 403
        kin = {"X_Real_IP": TELEGRAM, "Forwarded": f"for={TELEGRAM}", "CF_Connecting_IP": TELEGRAM}
        assert await calls(one, TELEGRAM, **kin) == 403
        assert await calls(one) == 403
        one.write(trusted_networks=["127.0.0.0/8"])
        await one.says("config loaded")
        assert await calls(one, STRANGER) == 202
        await target.has(1)
    assert target.ids == [1]


async def test_a_forged_address_behind_a_trusted_proxy(short_path: Path) -> None:
    """The proxy's own word is the last hop; what the caller put before it passes nobody."""
    settings: dict[str, Any] = {"trusted_networks": ["telegram"], "trusted_proxies": ["loopback"]}
    async with Target() as target, Daemon(short_path, [route("shop", target)], **settings) as one:
        for forged in FORGED:
            assert await calls(one, f"{forged}, {STRANGER}") == 403
            assert await calls(one, forged, STRANGER) == 403
        assert await calls(one, f"{TELEGRAM}, nonsense") == 403
        assert await calls(one, f"{TELEGRAM}, ") == 403
        assert await calls(one, f"{TELEGRAM}, 127.0.0.1") == 403
        assert await calls(one) == 403
        kin = {"X_Real_IP": TELEGRAM, "Forwarded": f"for={TELEGRAM}"}
        assert await calls(one, STRANGER, **kin) == 403
        assert target.ids == []
        assert await calls(one, f"{STRANGER}, {TELEGRAM}") == 202
        await target.has(1)
    assert target.ids == [1]
