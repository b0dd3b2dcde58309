"""The steps of the demo: each does something, waits for what must follow, and checks it."""

import json
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import anyio

from twr.demo.failure import StepError, check
from twr.demo.servers import Service
from twr.demo.stage import Stage
from twr.double import Delivery, sample
from twr.double.wire import encode_update

SLOWEST = 1.0
"""Seconds within which one service has to get its update while another one hangs."""

HUNG_FOR = 0.5

_FIRST_ID = 700_000_001
_DRIFT, _PENDING = "webhook_url_drift", "webhook_pending"


Facts = AsyncGenerator[str, None]


@dataclass(frozen=True, slots=True)
class Step:
    """A part of the demo. `run` gives each fact once it has been checked; StepError where not."""

    name: str
    run: Callable[[Stage], Facts]


async def start(stage: Stage) -> Facts:
    await stage.twr.start()
    await stage.until_ready()
    yield "the daemon is ready, with a store of its own"
    await stage.twr.command("webhook", "set", env_file=True)
    hook = stage.double.webhook
    check("Telegram to hold the webhook", hook is not None and hook.url == stage.old.url, hook)
    yield "`twr webhook set`: Telegram knows the webhook"


async def routing(stage: Stage) -> Facts:
    updates = [
        encode_update(sample("message", _FIRST_ID, user_id=11, text="/order 2 croissants")),
        encode_update(sample("message", _FIRST_ID + 1, user_id=12, text="where is my order?")),
        encode_update(sample("callback_query", _FIRST_ID + 2, user_id=13, data="order:17")),
        encode_update(sample("edited_message", _FIRST_ID + 3, user_id=14)),
    ]
    answers = [_answer(await stage.send(update)) for update in updates]
    told = [(answer.get("status"), answer.get("deliveries")) for answer in answers]
    expected = [("queued", 2), ("queued", 1), ("queued", 2), ("ignored", 0)]
    check(f"the answers {expected}", told == expected, told)
    order, question, button, _ = updates
    wanted = ((stage.shop, [order]), (stage.support, [order, question, button]))
    for service, bodies in (*wanted, (stage.audit, [button])):
        await stage.until_taken(service, [_id(body) for body in bodies])
        same = sorted(taken.body for taken in service.taken) == sorted(bodies)
        check(f"{service.name} to get its updates byte for byte", same, f"ids {service.ids}")
    yield "/order reached shop and support, a button support and audit"
    yield "each signed, and byte for byte as Telegram sent it"


async def duplicate(stage: Stage) -> Facts:
    update = encode_update(sample("message", _FIRST_ID + 10, user_id=11, text="/order 1 tea"))
    await stage.send(update)
    answer = _answer(await stage.send(update))
    check("the answer `duplicate`", answer == {"status": "duplicate", "deliveries": 0}, answer)
    after = (await stage.send(user_id=11, text="/order 1 coffee")).update_id
    for service in (stage.shop, stage.support):
        await stage.until_taken(service, [after])
        times = service.ids.count(_FIRST_ID + 10)
        check(f"one delivery to {service.name}", times == 1, f"{times} deliveries")
    yield "Telegram sent an update twice, each service got it once"


async def hung(stage: Stage) -> Facts:
    stage.support.hang()
    ids = [stage.double.enqueue(user_id=user, text="/order") for user in range(21, 31)]
    await stage.until_taken(stage.shop, ids)
    slowest = _slowest(stage, ids)
    limit = f"shop to get each update within {SLOWEST:g} s while support hangs"
    check(limit, slowest < SLOWEST, f"{slowest:.3f} s")
    seen = len(set(ids) & set(stage.support.ids))
    check("support to hang", not seen, f"it took {seen} updates")
    yield f"support hangs; shop gets {len(ids)} updates within {slowest * 1000:.0f} ms each"
    await anyio.sleep(HUNG_FOR)
    stage.support.release()
    await stage.until_taken(stage.support, ids)
    yield f"support answers again, and gets its {len(ids)}"


async def failing(stage: Stage) -> Facts:
    said, asked = len(stage.twr.log()), stage.shop.asked
    stage.shop.status = 503
    ids = [stage.double.enqueue(user_id=user, text="/order") for user in range(31, 37)]
    await stage.until_logged("ALERT firing route_down route=shop", said)
    await stage.until(
        lambda: stage.shop.asked > asked + len(ids),
        "shop to be tried again",
        lambda: f"{stage.shop.asked - asked} requests",
    )
    waiting = _route(await stage.status(), "shop")["waiting"]
    check(f"{len(ids)} updates to wait", waiting == len(ids), waiting)
    yield f"shop answers 503: its route pauses, {len(ids)} updates wait, the alert fires"
    stage.shop.status = 200
    await stage.until_taken(stage.shop, ids)
    await stage.until_logged("ALERT resolved route_down route=shop", said)
    await stage.until_status(lambda status: not _dead(status), "no dead letter")
    yield f"shop is back: it gets all {len(ids)}, the alert is resolved"


async def dead_letter(stage: Stage) -> Facts:
    stage.support.status = 400
    refused = (await stage.send(user_id=41, text="a text that support chokes on")).update_id
    await stage.until_status(lambda status: _dead(status) == 1, "one dead letter")
    stage.support.status = 200
    letter = f"{refused}/support"
    told = [(it["id"], it["reason"], it["last_status"]) for it in await _dead_letters(stage)]
    check(f"the dead letter {letter}", told == [(letter, "permanent", 400)], told)
    yield "support refuses an update (400): `twr dlq list` shows a dead letter"
    await stage.twr.command("dlq", "replay", letter)
    await stage.until_taken(stage.support, [refused])
    await stage.until_status(lambda status: not _dead(status), "no dead letter any more")
    yield "support is mended: `twr dlq replay` delivers it"


async def killed(stage: Stage) -> Facts:
    asked = stage.shop.asked
    stage.shop.hang()
    ids = [stage.double.enqueue(user_id=user, text="/order") for user in [*range(51, 61)] * 2]
    await stage.until(
        lambda: stage.shop.asked >= asked + 5, "deliveries in flight", lambda: stage.shop.asked
    )
    await stage.twr.kill()
    stage.shop.release()
    ids += [stage.double.enqueue(user_id=user, text="/order") for user in range(51, 56)]
    yield "kill -9 with deliveries in flight; Telegram goes on sending"
    await stage.twr.start()
    await stage.until_ready()
    for service in (stage.shop, stage.support):
        await stage.until_taken(service, ids)
        _check_order(service, ids)
    await stage.until_status(_nothing_waits, "nothing to wait any more")
    await stage.until_none_pending()
    twice = sum(stage.shop.ids.count(update_id) > 1 for update_id in ids)
    yield f"started again: none of {len(ids)} is lost, each chat in order ({twice} came twice)"


async def domain_move(stage: Stage) -> Facts:
    said, sent = len(stage.twr.log()), len(stage.double.sent)
    stage.old.moved_to = stage.new
    stage.configure(stage.new.url)
    await stage.until_logged("config loaded", said)
    ids = [stage.double.enqueue(user_id=user) for user in range(61, 67)]
    await stage.until(lambda: _redirected(stage, ids), "answers of 301", lambda: "none")
    yield "the old address answers 301, which Telegram does not follow"
    webhook = await stage.until_status(
        lambda status: status["webhook"]["pending"] == len(ids), f"{len(ids)} pending updates"
    )
    error = str(webhook["webhook"]["last_error"])
    check("Telegram to tell of the 301", "301 Moved Permanently" in error, error)
    yield f"{len(ids)} updates pend at Telegram, its last error is the 301"
    for alert in (_DRIFT, _PENDING):
        await stage.until_logged(f"ALERT firing {alert}", said)
    await stage.until(
        lambda: any(f"FIRING {_DRIFT}" in it["text"] for it in stage.double.sent[sent:]),
        "the alert in the chat",
        lambda: f"{len(stage.double.sent) - sent} messages",
    )
    yield f"{_DRIFT} and {_PENDING} fire, in the log and the chat"
    await stage.twr.command("webhook", "set", env_file=True)
    await stage.until_none_pending()
    await stage.until_taken(stage.support, ids)
    yield f"`twr webhook set`: pending falls to 0, support has the {len(ids)}"
    for alert in (_DRIFT, _PENDING):
        await stage.until_logged(f"ALERT resolved {alert}", said)
    yield "both alerts resolve"


STEPS = (
    Step("start", start),
    Step("routing and fan-out", routing),
    Step("duplicate", duplicate),
    Step("hung service", hung),
    Step("failing service", failing),
    Step("dead letter", dead_letter),
    Step("kill -9", killed),
    Step("domain move", domain_move),
)


def _answer(delivery: Delivery) -> Mapping[str, Any]:
    try:
        answer = json.loads(delivery.body)
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        raise StepError("an answer in JSON", f"{delivery.status} {delivery.body[:100]!r}")
    return answer


def _slowest(stage: Stage, ids: list[int]) -> float:
    """The longest way of an update from Telegram to shop, in seconds."""
    sent = {it.update_id: it.sent_at for it in stage.double.deliveries if it.ok}
    return max(it.at - sent[it.update_id] for it in stage.shop.taken if it.update_id in ids)


def _route(status: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    return next(route for route in status["routes"] if route["name"] == name)


def _dead(status: Mapping[str, Any]) -> int:
    return sum(int(route["dead"]) for route in status["routes"])


def _nothing_waits(status: Mapping[str, Any]) -> bool:
    return not any(route["waiting"] for route in status["routes"])


async def _dead_letters(stage: Stage) -> list[dict[str, Any]]:
    told = await stage.twr.command("dlq", "list", "--json")
    return [json.loads(line) for line in told.splitlines()]


def _id(body: bytes) -> int:
    return int(json.loads(body)["update_id"])


def _redirected(stage: Stage, ids: list[int]) -> bool:
    return any(it.status == 301 and it.update_id in ids for it in stage.double.deliveries)


def _check_order(service: Service, ids: list[int]) -> None:
    """Each chat's updates came first in the order in which they happened (ids rise)."""
    chats = {it.update_id: it.chat_id for it in service.taken if it.update_id in ids}
    for chat in set(chats.values()):
        first = [update_id for update_id in chats if chats[update_id] == chat]
        check("the updates of a chat in their order", first == sorted(first), first)
