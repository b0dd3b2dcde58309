"""The watch over the webhook, against a Bot API server."""

import logging
from dataclasses import replace

import pytest

from services.probing import OLD, SETTINGS, SHOP, URL, Notes, World, lines, looks
from twr.core.drift import Wanted
from twr.core.findings import Finding
from twr.core.jobs import RouteStats, Stats
from twr.core.matching import Match, Rule
from twr.core.system import NOTICE
from twr.double import TelegramDouble
from twr.edges import notifiers
from twr.services.probe import Traffic, watch

pytestmark = pytest.mark.anyio


@pytest.mark.usefixtures("quick")
async def test_a_drifted_url_is_told_and_resolved(
    double: TelegramDouble, world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """In the log, to the sinks, in the status and the metrics; once each way."""
    caplog.set_level(logging.INFO)
    async with world.watched():
        await world.until(lambda: len(world.numbers.seen) == 2)
        assert world.numbers.seen[-1] == (True, 0, None)
        assert world.notes.told == []
        double.set_webhook(OLD)
        await world.until_told(("firing", "webhook_url_drift"))
        assert world.numbers.firing == {"webhook_url_drift"}
        status = world.board.snapshot()
        (alert,) = status["alerts"]
        assert (alert["name"], alert["detail"]) == (
            "webhook_url_drift",
            f"expected={URL} actual={OLD}",
        )
        assert status["webhook"] == {
            "url": OLD,
            "expected": URL,
            "matches": False,
            "pending": 0,
            "last_error": None,
            "last_error_at": None,
            "checked_at": status["webhook"]["checked_at"],
        }
        double.set_webhook(URL)
        await world.until_told(("firing", "webhook_url_drift"), ("resolved", "webhook_url_drift"))
        assert world.board.snapshot()["alerts"] == []
    assert lines(caplog) == [
        f"ALERT firing webhook_url_drift expected={URL} actual={OLD}",
        "ALERT resolved webhook_url_drift",
    ]
    assert [it.levelno for it in caplog.records if it.name == "twr.alerts"] == [
        logging.ERROR,
        NOTICE,
    ]


@pytest.mark.usefixtures("quick")
async def test_whoever_sets_the_url_right_sees_it_soon(
    double: TelegramDouble, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it is wrong Telegram is asked sooner than the interval says, and no more after."""
    monkeypatch.setattr(watch, "ASTRAY_EVERY", 0.05)
    world.settings = replace(SETTINGS, interval=3600.0)
    double.set_webhook(OLD)
    async with world.watched():
        await world.until_told(("firing", "webhook_url_drift"))
        double.set_webhook(URL)
        await world.until_told(("firing", "webhook_url_drift"), ("resolved", "webhook_url_drift"))
        asked = looks(double)
        await world.evaluated(6)
        assert looks(double) == asked


@pytest.mark.usefixtures("quick")
async def test_six_pending_updates_are_told(double: TelegramDouble, world: World) -> None:
    """The address moved, nothing arrives any more: pending and the error tell so."""
    async with world.watched():
        await world.until(lambda: bool(world.numbers.seen))
        for _ in range(6):
            double.enqueue()
        await world.until_told(("firing", "webhook_pending"), ("firing", "webhook_error"))
        pending = next(it for it in world.notes.told if it.alert == "webhook_pending")
        assert dict(pending.detail)["pending"] == 6
        assert dict(pending.detail)["accepted"] == 0


@pytest.mark.usefixtures("quick")
async def test_an_alert_is_repeated(double: TelegramDouble, world: World) -> None:
    """Every `repeat` seconds while it lasts."""
    world.settings = replace(SETTINGS, repeat=0.2)
    double.set_webhook(OLD)
    async with world.watched():
        await world.until(lambda: len(world.notes.told) == 3)
    assert [it.kind for it in world.notes.told] == ["firing", "repeat", "repeat"]


async def test_a_hanging_telegram_delays_nothing(double: TelegramDouble, world: World) -> None:
    """What this process knows by itself is told within a second."""
    double.api_fault = "hang"
    async with world.watched():
        await world.until(lambda: looks(double) == 1 and world.board.loaded)
        world.local = [Finding("route_down", "shop", (("failures", 5),))]
        await world.until_told(("firing", "route_down"), seconds=1.0)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    ("fault", "alert"),
    [("500", "telegram_unreachable"), ("401", "telegram_token_invalid")],
)
async def test_a_bot_api_that_fails_is_told(
    fault: str, alert: str, double: TelegramDouble, world: World
) -> None:
    """And is over with the first answer."""
    double.api_fault = fault
    async with world.watched():
        await world.until_told(("firing", alert))
        double.api_fault = None
        await world.until_told(("firing", alert), ("resolved", alert))


@pytest.mark.usefixtures("quick")
async def test_without_a_token_telegram_is_not_asked(caplog: pytest.LogCaptureFixture) -> None:
    """All else goes on, and what was firing on Telegram's side is over."""
    world = World(None)
    world.shelf.texts["telegram_token_invalid"] = '{"since": 1, "told_at": 1, "detail": {}}'
    world.local = [Finding("config_invalid")]
    async with world.watched():
        await world.until_told(("firing", "config_invalid"), ("resolved", "telegram_token_invalid"))
        await world.evaluated()
    assert lines(caplog, "twr.probe") == []
    assert world.numbers.seen == []


@pytest.mark.usefixtures("quick")
async def test_five_rejections_are_told_within_a_second(world: World) -> None:
    """Telegram need not be asked for that."""
    world.settings = replace(SETTINGS, interval=3600.0)
    async with world.watched():
        await world.until(lambda: bool(world.numbers.seen))
        world.traffic = Traffic(accepted=3, unauthorized=4)
        await world.evaluated()
        assert world.notes.told == []
        world.traffic = Traffic(accepted=3, unauthorized=5)
        await world.until_told(("firing", "webhook_secret_mismatch"), seconds=1.0)


@pytest.mark.usefixtures("quick")
async def test_a_store_that_is_down_is_told_at_once(double: TelegramDouble, world: World) -> None:
    """Before anything is known of earlier alerts; those wait for the store a while."""
    world.shelf.down = True
    world.local = [Finding("store_down"), Finding("config_invalid")]
    async with world.watched():
        await world.until_told(("firing", "store_down"), seconds=1.0)
        assert looks(double) == 0


@pytest.mark.usefixtures("quick")
async def test_a_store_that_stays_down_does_not_stop_the_watch(
    double: TelegramDouble, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After some seconds the probe goes on with what it has; the store is told later."""
    monkeypatch.setattr(watch, "STORE_PATIENCE", 0.1)
    monkeypatch.setattr(watch, "_SAVE_RETRY", 0.05)
    world.shelf.down = True
    double.set_webhook(OLD)
    async with world.watched():
        await world.until_told(("firing", "webhook_url_drift"))
        world.shelf.down = False
        await world.until(lambda: "webhook_url_drift" in world.shelf.texts)
        world.shelf.down = True
        double.set_webhook(URL)
        await world.until_told(("firing", "webhook_url_drift"), ("resolved", "webhook_url_drift"))
        world.shelf.down = False
        await world.until(lambda: "webhook_url_drift" not in world.shelf.texts)


@pytest.mark.usefixtures("quick")
async def test_a_store_that_hangs_delays_nothing(double: TelegramDouble, world: World) -> None:
    """Neither the look at Telegram nor the alert that comes of it."""
    async with world.watched():
        await world.until(lambda: bool(world.numbers.seen))
        world.shelf.hangs = True
        double.set_webhook(OLD)
        await world.until_told(("firing", "webhook_url_drift"), seconds=1.0)


def waiting(name: str, count: int, age: float) -> RouteStats:
    """A route with this much waiting for so many seconds."""
    return RouteStats(name, 0, count, 0, 0, count, int(1_000_000 - age * 1000), 0)


@pytest.mark.usefixtures("quick")
async def test_what_waits_and_what_died_is_told(world: World) -> None:
    """A route behind, a route gone, and new dead letters by reason."""
    async with world.watched():
        await world.until(lambda: world.board.stats is not None)
        world.shelf.found = Stats(
            1_000_000,
            (waiting("shop", 3, 301.0), waiting("gone", 1, 2.0)),
            {},
            {("shop", "attempts"): 2},
        )
        await world.until_told(
            ("firing", "route_backlog"), ("firing", "route_orphaned"), ("firing", "dead_letters")
        )
        world.shelf.found = Stats(1_000_000, (waiting("shop", 3, 150.0),), {})
        await world.until(lambda: len(world.notes.told) == 4)
        assert world.notes.kinds[-1] == ("resolved", "route_orphaned")
        world.shelf.found = Stats(1_000_000, (waiting("shop", 3, 149.0),), {})
        await world.until(lambda: len(world.notes.told) == 5)
        assert world.notes.kinds[-1] == ("resolved", "route_backlog")
    texts = {notifiers.line(it) for it in world.notes.told}
    assert "ALERT firing dead_letters route=shop reason=attempts count=2" in texts
    assert "ALERT firing route_backlog route=shop waiting=3 oldest_seconds=301" in texts
    assert "ALERT firing route_orphaned route=gone waiting=1 oldest_seconds=2" in texts


@pytest.mark.usefixtures("quick")
async def test_what_dies_again_is_told(world: World) -> None:
    """As many dead letters as before are news where one was replayed and has died again."""
    world.shelf.found = Stats(1, (), {("shop", "attempts"): 2}, {("shop", "attempts"): 2})
    async with world.watched():
        await world.until(lambda: world.board.stats is not None)
        world.shelf.found = Stats(2, (), {("shop", "attempts"): 2}, {("shop", "attempts"): 3})
        await world.until_told(("firing", "dead_letters"))
    assert notifiers.line(world.notes.told[0]) == (
        "ALERT firing dead_letters route=shop reason=attempts count=1"
    )


@pytest.mark.usefixtures("quick")
async def test_a_reload_takes_effect_at_once(double: TelegramDouble, world: World) -> None:
    """New settings are compared with what Telegram holds right away, not a minute later."""
    world.settings = replace(SETTINGS, interval=3600.0)
    async with world.watched():
        await world.until(lambda: bool(world.numbers.seen))
        world.settings = replace(world.settings, wanted=Wanted(OLD, 40, None))
        await world.until_told(("firing", "webhook_url_drift"))


@pytest.mark.usefixtures("quick")
async def test_the_username_is_learned_once(double: TelegramDouble, world: World) -> None:
    """As soon as Telegram can be asked."""
    double.api_fault = "500"
    async with world.watched():
        await world.until(lambda: looks(double) == 2)
        assert world.learnt == []
        double.api_fault = None
        await world.until(lambda: bool(world.learnt))
        seen = looks(double)
        await world.until(lambda: looks(double) == seen + 3)
    assert world.learnt == ["double_bot"]


@pytest.mark.usefixtures("quick")
async def test_a_list_that_leaves_out_what_a_route_waits_for(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """Is warned of once, at the start and when it changes; one made by twr never."""
    rules = (SHOP, Rule("audit", Match(callback_prefixes=("order:",))))
    wanted = Wanted(URL, 40, ("message",))
    world.settings = replace(SETTINGS, wanted=wanted, rules=rules)
    async with world.watched():
        await world.until(lambda: len(world.numbers.seen) == 2)
        assert lines(caplog, "twr.probe") == []
        world.settings = replace(world.settings, listed=True)
        seen = len(world.numbers.seen)
        await world.until(lambda: len(world.numbers.seen) == seen + 3)
    assert lines(caplog, "twr.probe") == [
        "allowed_updates leaves out what a route waits for route=audit types=callback_query"
    ]


@pytest.mark.usefixtures("quick")
async def test_a_sink_that_hangs_holds_up_no_other(
    double: TelegramDouble, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor the probe, nor its end."""
    monkeypatch.setattr(notifiers, "LAST_WORDS", 0.05)
    world.sinks = [Notes("stuck", hangs=True), world.notes]
    double.set_webhook(OLD)
    async with world.watched():
        await world.until_told(("firing", "webhook_url_drift"))
        double.set_webhook(URL)
        await world.until_told(("firing", "webhook_url_drift"), ("resolved", "webhook_url_drift"))


@pytest.mark.usefixtures("quick")
async def test_no_secret_gets_out(world: World) -> None:
    """Texts from outside may repeat one."""
    world.secret = "hunter2"
    world.local = [Finding("config_invalid", None, (("error", "token hunter2 is bad"),))]
    async with world.watched():
        await world.until_told(("firing", "config_invalid"))
    assert world.notes.told[0].detail == (("error", "token *** is bad"),)
    assert "hunter2" not in str(world.shelf.texts)
