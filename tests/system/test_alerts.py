"""Every alert of a real daemon: told once when it fires and once when it is over, everywhere."""

import asyncio
import re
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from servers import Server
from system.harness import message
from system.watched import PUBLIC, Stamped, Watched, watched
from targets import Target, answering, by_turns, cutting, held, reply, saying
from twr.core import drift, findings
from twr.edges import front
from until import until

pytestmark = pytest.mark.anyio

ELSEWHERE = "http://127.0.0.1:9/old"

Trouble = Callable[[Watched], AsyncGenerator[None, None]]


async def url_drift(world: Watched) -> AsyncGenerator[None, None]:
    """Somebody registers another URL."""
    world.register(ELSEWHERE)
    yield
    world.register()


async def pending(world: Watched) -> AsyncGenerator[None, None]:
    """The public address closes each connection, which Telegram does not call an error."""
    async with Target(cutting) as front:
        world.double.resolve[PUBLIC] = f"http://127.0.0.1:{front.port}"
        world.double.enqueue()
        yield
    world.double.resolve[PUBLIC] = f"http://127.0.0.1:{world.daemon.port}"


async def error(world: Watched) -> AsyncGenerator[None, None]:
    """The public address answers one 500, with a text that could be taken for markup or fields."""
    bad = saying(reply(500, reason='{<b>} x="1" ALERT'))
    async with Target(by_turns(bad, answering(200))) as front:
        world.double.resolve[PUBLIC] = f"http://127.0.0.1:{front.port}"
        await world.double.push()
        yield
    world.forward(drift.ERROR_QUIET + 1)


async def settings_drift(world: Watched) -> AsyncGenerator[None, None]:
    """Somebody registers other limits."""
    world.register(max_connections=7)
    yield
    world.register()


async def secret_mismatch(world: Watched) -> AsyncGenerator[None, None]:
    """Requests come with a wrong secret."""
    for update_id in range(5):
        assert (await world.daemon.post(message(update_id), secret="stale"))[0] == 401
    yield
    world.forward(drift.REJECTIONS_WINDOW + 1)


async def unreachable(world: Watched) -> AsyncGenerator[None, None]:
    """A page comes where the Bot API was."""
    world.double.api_fault = "html"
    yield
    world.double.api_fault = None


async def token_invalid(world: Watched) -> AsyncGenerator[None, None]:
    """The Bot API knows the token no more."""
    world.double.api_fault = "401"
    yield
    world.double.api_fault = None


async def route_down(world: Watched) -> AsyncGenerator[None, None]:
    """The service is away."""
    world.service.behaviour = answering(503)
    await world.daemon.accepts(message(1, chat=1), message(2, chat=2))
    yield
    world.service.behaviour = answering(200)


async def backlog(world: Watched) -> AsyncGenerator[None, None]:
    """The service takes its time."""
    gate = asyncio.Event()
    world.service.behaviour = held(gate)
    await world.daemon.accepts(message(1))
    yield
    gate.set()


async def orphaned(world: Watched) -> AsyncGenerator[None, None]:
    """A route goes from the file while an update waits for it."""
    world.service.behaviour = by_turns(answering(500), answering(200))
    await world.daemon.accepts(message(1))
    await world.daemon.comes("shop", delayed=1)
    routes = world.daemon.settings["routes"]
    world.daemon.write(routes=[{**routes[0], "name": "other"}])
    yield
    world.daemon.write(routes=routes)


async def dead_letters(world: Watched) -> AsyncGenerator[None, None]:
    """The service refuses an update for good."""
    world.service.behaviour = answering(400)
    await world.daemon.accepts(message(1))
    yield
    world.forward(3601)


async def config_invalid(world: Watched) -> AsyncGenerator[None, None]:
    """A key that does not exist is saved."""
    world.daemon.write(listne="127.0.0.1:1")
    yield
    del world.daemon.settings["listne"]
    world.daemon.write()


@dataclass(frozen=True)
class Case:
    """What causes and mends it, what the log line says behind the alert's name, and settings.

    Where Telegram itself is the trouble, the chat hears of both only when it is over.
    """

    trouble: Trouble
    line: str
    settings: dict[str, Any] = field(default_factory=dict)
    chat: bool = True


CASES = {
    findings.URL_DRIFT: Case(url_drift, rf"expected=https://{PUBLIC}/hook actual={ELSEWHERE}"),
    findings.PENDING: Case(pending, "pending=1 accepted=0"),
    findings.ERROR: Case(
        error,
        r'error="Wrong response from the webhook: 500 {<b>} x=\\"1\\" ALERT" at=20[-0-9T:]+Z',
    ),
    findings.SETTINGS_DRIFT: Case(settings_drift, "max_connections=7 expected_max_connections=40"),
    findings.SECRET_MISMATCH: Case(secret_mismatch, r'unauthorized=\d hint=".*secret_token.*"'),
    findings.UNREACHABLE: Case(unreachable, 'error=".* answers 200 with HTML: .*"', chat=False),
    findings.TOKEN_INVALID: Case(token_invalid, 'error="Telegram refused: 401 .*"', chat=False),
    findings.ROUTE_DOWN: Case(
        route_down,
        r"route=shop target=http://127\.0\.0\.1:\d+/telegram/updates",
        {"delivery": {"breaker": {"failures": 2, "cooldown": "100ms"}}},
    ),
    findings.ROUTE_BACKLOG: Case(
        backlog,
        r"route=shop waiting=1 oldest_seconds=\d+",
        {"alerts": {"backlog": "1s"}, "delivery": {"timeout": "60s"}},
    ),
    findings.ROUTE_ORPHANED: Case(
        orphaned,
        r"route=shop waiting=1 oldest_seconds=\d+",
        {"delivery": {"backoff": {"first": "3s", "jitter": 0}}},
    ),
    findings.DEAD_LETTERS: Case(dead_letters, "route=shop reason=permanent count=1"),
    findings.CONFIG_INVALID: Case(config_invalid, 'error=".*twr.yaml:.*listne.*"'),
}


def test_every_alert_has_a_case() -> None:
    """No alert is left without a test; the one of the store needs a store to stop."""
    alerts = findings.WEBHOOK_ALERTS | findings.STORE_ALERTS | findings.LOCAL_ALERTS
    assert set(CASES) | {findings.STORE_DOWN} == alerts


async def check_once(world: Watched, alert: str, case: Case) -> None:
    """It fires once and resolves once, in the log, in the chat and at the webhook."""
    async with asynccontextmanager(case.trouble)(world):
        await world.tells(("firing", alert), chat=case.chat)
        assert [it["name"] for it in (await world.daemon.status())["alerts"]] == [alert]
    await world.tells(("firing", alert), ("resolved", alert))
    await world.looks(3)
    await world.tells(("firing", alert), ("resolved", alert))
    assert (await world.daemon.status())["alerts"] == []
    (line,) = world.daemon.logged(f"ALERT firing {alert}")
    assert re.fullmatch(case.line, line.partition(f"{alert} ")[2]), line
    firing, resolved = world.payloads
    assert firing["text"] == line.partition(" error ")[2].strip() != resolved["text"]
    first, last = world.double.sent
    assert {first["message_thread_id"], last["message_thread_id"]} == {7}
    for name, value in firing["detail"].items():
        assert f"{name}: {value}" in first["text"]


async def test_a_store_that_is_down_is_told_of(short_path: Path, own_server: Server) -> None:
    """The one alert that the store cannot keep; while it is down no other one ends or begins."""

    async def store_down(world: Watched) -> AsyncGenerator[None, None]:
        own_server.stop()
        yield
        own_server.start()

    case = Case(store_down, r'error="the store is not available: .*"')
    async with watched(short_path, store_url=own_server.url) as world:
        await check_once(world, findings.STORE_DOWN, case)


@pytest.mark.parametrize("alert", CASES)
async def test_an_alert_fires_once_and_resolves_once(short_path: Path, alert: str) -> None:
    """Whatever it is about, each place hears of its begin and of its end, once."""
    async with watched(short_path, **CASES[alert].settings) as world:
        await check_once(world, alert, CASES[alert])


async def test_a_restart_neither_repeats_nor_forgets(short_path: Path) -> None:
    """After a stop or a kill an alert goes on silently; one that ended meanwhile is told."""
    async with watched(short_path) as world:
        world.register(ELSEWHERE)
        await world.tells(("firing", findings.URL_DRIFT))
        (before,) = (await world.daemon.status())["alerts"]
        assert await world.daemon.stop() == 0
        await world.daemon.start()
        await world.looks(3)
        await world.daemon.kill()
        await world.daemon.start()
        await world.looks(3)
        assert (await world.daemon.status())["alerts"] == [before]
        await world.tells(("firing", findings.URL_DRIFT))
        assert await world.daemon.stop() == 0
        world.register()
        await world.daemon.start()
        await world.tells(("firing", findings.URL_DRIFT), ("resolved", findings.URL_DRIFT))


async def test_a_started_daemon_looks_at_once_after_a_kill(short_path: Path) -> None:
    """Its own claim of the probe, of before the kill, does not keep it waiting."""
    async with watched(short_path) as world:
        await world.daemon.kill()
        asked = world.asked
        await world.daemon.start()
        await until(lambda: world.asked > asked, 3, "a look")


async def test_an_alert_repeats(short_path: Path) -> None:
    """Every `alerts.repeat` as long as it fires, everywhere, with the time it began."""
    async with watched(short_path, alerts={"repeat": "1s"}) as world:
        world.register(ELSEWHERE)
        await until(lambda: len(world.chat) >= 4, 20, "three repeats")
        world.register()
        await until(lambda: world.chat[-1][0] == "resolved", 20, "the end")
        await world.looks(2)
        told = world.chat
        assert world.logged == world.posted == told
        assert [word for word, _ in told] == ["firing", *["repeat"] * (len(told) - 2), "resolved"]
        times = [request.at for request in world.sink.received[:-1]]
        gaps = [after - before for before, after in pairwise(times)]
        assert min(gaps) > 0.5
        assert {payload["since"] for payload in world.payloads} == {world.payloads[0]["since"]}


async def test_an_alert_goes_out_within_a_second_of_the_look(short_path: Path) -> None:
    """To both sinks, counted from the question to Telegram whose answer shows it."""
    async with watched(short_path, probe={"interval": "3s"}) as world:
        calls, sent = world.double.calls, world.double.sent
        assert isinstance(calls, Stamped)
        assert isinstance(sent, Stamped)
        world.register(ELSEWHERE)
        await world.tells(("firing", findings.URL_DRIFT))
        told = max(world.sink.received[0].at, sent.times[0])
        looks = [
            at
            for (method, _), at in zip(calls, calls.times, strict=True)
            if method == "getWebhookInfo" and at < told
        ]
        assert told - looks[-1] < 1


async def test_a_look_that_hangs_delays_nothing(short_path: Path) -> None:
    """While Telegram does not answer, updates are taken and delivered as ever."""
    async with watched(short_path) as world:
        world.double.api_fault = "hang"
        asked = world.asked
        await until(lambda: world.asked > asked, 10, "a look that hangs")
        slowest = 0.0
        for update_id in range(1, 31):
            began = time.monotonic()
            await world.daemon.accepts(message(update_id))
            await world.service.has(update_id)
            slowest = max(slowest, time.monotonic() - began)
        assert world.asked == asked + 1
        assert slowest < 1


async def test_a_sink_that_is_down_is_one_line(short_path: Path) -> None:
    """However many notices wait for it; the other one hears of all of them at once."""
    async with watched(short_path) as world:
        await world.sink.close()
        expected = []
        for _ in range(3):
            world.register(ELSEWHERE)
            expected.append(("firing", findings.URL_DRIFT))
            await until(lambda: world.chat == expected, 10, f"{expected} in the chat")
            world.register()
            expected.append(("resolved", findings.URL_DRIFT))
            await until(lambda: world.chat == expected, 10, f"{expected} in the chat")
        await until(lambda: world.daemon.logged("sink webhook unavailable"), 10, "the line")
        await world.looks(10)
        (line,) = world.daemon.logged("sink webhook")
        assert line.endswith('sink webhook unavailable reason="connection refused"')
        await world.sink.open()
        await world.tells(*expected, within=60)
        assert len(world.daemon.logged("sink webhook")) == 2


async def test_the_heartbeat_beats_while_updates_can_come(short_path: Path) -> None:
    """After each healthy look, and not while the webhook is elsewhere."""
    async with watched(short_path) as world:
        await world.heartbeat.has(3)
        world.register(ELSEWHERE)
        await world.tells(("firing", findings.URL_DRIFT))
        await world.looks(1)
        beats = len(world.heartbeat.received)
        await world.looks(4)
        assert len(world.heartbeat.received) == beats
        world.register()
        await world.heartbeat.has(beats + 2)
        assert {request.method for request in world.heartbeat.received} == {"GET"}


async def test_a_knock_of_ours_is_no_sign_of_a_stale_secret(short_path: Path) -> None:
    """However often `twr webhook set` looks what answers at the public URL, nothing fires."""
    async with watched(short_path) as world:
        for _ in range(6):
            answer = await front.knock(world.daemon.url)
            assert (answer.status, answer.word) == (401, "unauthorized")
        await world.looks(3)
        assert (await world.daemon.status())["alerts"] == []
        assert world.logged == []


async def test_what_a_sink_is_sent(short_path: Path) -> None:
    """The JSON of a notice, with the headers that were configured."""
    async with watched(short_path) as world:
        world.register(ELSEWHERE)
        await world.tells(("firing", findings.URL_DRIFT))
        (request,) = world.sink.received
        payload = request.update
    assert request.header("Authorization") == "sink-secret-2"
    assert re.fullmatch(r"20[-0-9T:]+Z", payload.pop("since"))
    assert payload.pop("at")
    assert payload == {
        "status": "firing",
        "repeat": False,
        "alert": findings.URL_DRIFT,
        "detail": {"expected": f"https://{PUBLIC}/hook", "actual": ELSEWHERE},
        "sender": "main@vps-1",
        "text": (
            f"ALERT firing {findings.URL_DRIFT} expected=https://{PUBLIC}/hook actual={ELSEWHERE}"
        ),
    }
