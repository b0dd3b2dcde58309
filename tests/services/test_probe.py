"""The watch over the webhook, against a Bot API server."""

import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import anyio
import pytest
from aiohttp import web

from servers import Server
from twr.core.alerting import Notice
from twr.core.clock import Clock
from twr.core.drift import Limits, Memory, Since, Wanted, dump_memory
from twr.core.findings import Finding
from twr.core.jobs import RouteStats, Stats
from twr.core.matching import Match, Rule
from twr.core.system import NOTICE
from twr.core.webhook_info import Webhook
from twr.double import TelegramDouble
from twr.edges import notifiers
from twr.edges.notifiers import Failure, Heartbeat, Sink
from twr.edges.store import Identity, open_store
from twr.edges.telegram import Telegram
from twr.errors import StoreUnavailable
from twr.services import probe
from twr.services.probe import Board, Inputs, Outputs, Settings, Traffic, leavings, watch
from twr.services.probe.board import Window

pytestmark = pytest.mark.anyio

CLOCK = Clock(time.time, time.monotonic)
URL = "http://127.0.0.1:9/webhooks/telegram"
OLD = "http://127.0.0.1:9/old"
SHOP = Rule("shop", Match())
SETTINGS = Settings(
    Wanted(URL, 40, None), (SHOP,), interval=0.05, limits=Limits(pending=10, fire_after=2)
)


@dataclass
class Shelf:
    """What a store holds of the alerts, in memory; it may be down, and it may hang."""

    texts: dict[str, str] = field(default_factory=dict)
    holder: object = None
    down: bool = False
    hangs: bool = False
    found: Stats = field(default_factory=lambda: Stats(1000, (), {}))
    saves: int = 0
    silences: dict[str, float | None] = field(default_factory=dict)

    async def ready(self) -> None:
        """Answer, or not."""
        if self.hangs:
            await anyio.sleep_forever()
        if self.down:
            raise StoreUnavailable("the store is not available")


@dataclass
class Instance:
    """One process's view of the shelf."""

    shelf: Shelf
    name: str = "vps-1"

    async def stats(self) -> Stats:
        """What waits."""
        await self.shelf.ready()
        return self.shelf.found

    async def load_alerts(self) -> dict[str, str]:
        """What is stored."""
        await self.shelf.ready()
        return dict(self.shelf.texts)

    async def save_alerts(self, changed: Mapping[str, str | None]) -> None:
        """Store it."""
        await self.shelf.ready()
        self.shelf.saves += 1
        for name, text in changed.items():
            if text is None:
                self.shelf.texts.pop(name, None)
            else:
                self.shelf.texts[name] = text

    async def silences(self, instances: Sequence[str]) -> Mapping[str, float | None]:
        """For how long each has been silent; those that nothing is said of beat."""
        await self.shelf.ready()
        return {name: self.shelf.silences.get(name, 0.0) for name in instances}

    async def claim_probe(self, ttl: float) -> bool:
        """Whoever asks first has it, until the holder is taken away."""
        await self.shelf.ready()
        if self.shelf.holder is None:
            self.shelf.holder = self.name
        held = self.shelf.holder == self.name
        if held and ttl < 0.01:
            self.shelf.holder = None
        return held


@dataclass
class Numbers:
    """What the metrics were told."""

    seen: list[tuple[bool | None, int | None, float | None]] = field(default_factory=list)
    succeeded: list[float | None] = field(default_factory=list)
    firing: frozenset[str] = frozenset()
    evaluations: int = 0

    def webhook(
        self, matches: bool | None, pending: int | None, last_error_ts: float | None
    ) -> None:
        """A look was answered."""
        self.seen.append((matches, pending, last_error_ts))

    def probe_success(self, timestamp: float | None) -> None:
        """At this time."""
        self.succeeded.append(timestamp)

    def alerts_firing(self, names: Collection[str]) -> None:
        """These fire now."""
        self.firing = frozenset(names)
        self.evaluations += 1


@dataclass(eq=False)
class Notes:
    """A sink that keeps what it is told."""

    name: str = "notes"
    told: list[Notice] = field(default_factory=list)
    hangs: bool = False

    async def send(self, notice: Notice) -> Failure | None:
        """Keep it."""
        if self.hangs:
            await anyio.sleep_forever()
        self.told.append(notice)
        return None

    @property
    def kinds(self) -> list[tuple[str, str]]:
        """Kind and alert of each notice."""
        return [(it.kind, it.alert) for it in self.told]


class World:
    """A probe and all that is around it, to be changed while it runs."""

    def __init__(self, bot: Telegram | None, shelf: Shelf | None = None) -> None:
        self.bot = bot
        self.shelf = shelf or Shelf()
        self.settings = SETTINGS
        self.traffic = Traffic()
        self.local: list[Finding] = []
        self.notes = Notes()
        self.sinks: list[Sink] = [self.notes]
        self.heartbeat: Heartbeat | None = None
        self.numbers = Numbers()
        self.secret = "no-secret-at-all"
        self.learnt: list[str] = []
        self.instance = "vps-1"
        self.board = Board(self.instance)

    async def learned(self, username: str) -> None:
        """Note the name."""
        self.learnt.append(username)

    def named(self, instance: str) -> "World":
        """This world as another instance."""
        self.instance = instance
        self.board = Board(instance)
        return self

    @contextlib.asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        """With the probe running."""
        inputs = Inputs(
            lambda: self.settings,
            lambda: self.bot,
            lambda: self.traffic,
            lambda: self.local,
            Instance(self.shelf, self.instance),
        )
        outputs = Outputs(
            lambda: self.sinks,
            lambda: self.heartbeat,
            self.numbers,
            lambda text: text.replace(self.secret, "***"),
            self.learned,
        )
        stop = anyio.Event()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(probe.run, inputs, outputs, self.board, CLOCK, half, stop)
            yield
            stop.set()

    async def until(self, condition: Callable[[], bool], seconds: float = 5.0) -> None:
        """Wait until `condition` holds."""
        await until(condition, seconds)

    async def evaluated(self, times: int = 3) -> None:
        """Wait until all has been looked at so often again."""
        seen = self.numbers.evaluations
        await until(lambda: self.numbers.evaluations >= seen + times)

    async def until_told(self, *kinds: tuple[str, str], seconds: float = 5.0) -> None:
        """Wait until just these were told, in any order."""
        await until(lambda: sorted(self.notes.kinds) == sorted(kinds), seconds)


async def until(condition: Callable[[], bool], seconds: float = 5.0) -> None:
    """Wait until `condition` holds, at most so long."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it has not come to that"
        await anyio.sleep(0.01)


def half() -> float:
    """No luck at all."""
    return 0.5


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The store is asked more often."""
    monkeypatch.setattr(watch, "CLAIM_EVERY", 0.05)
    monkeypatch.setattr(watch, "STATS_EVERY", 0.05)
    monkeypatch.setattr(watch, "EVALUATE_EVERY", 0.05)


@pytest.fixture
async def double() -> AsyncIterator[TelegramDouble]:
    """A Bot API server with the webhook as it should be."""
    async with TelegramDouble() as it:
        it.set_webhook(URL)
        yield it


@pytest.fixture
async def world(double: TelegramDouble) -> AsyncIterator[World]:
    """A probe with a bot."""
    async with Telegram(double.api_url, double.token, timeout=2.0) as bot:
        yield World(bot)


def lines(caplog: pytest.LogCaptureFixture, logger: str = "twr.alerts") -> list[str]:
    """What was logged."""
    return [it.getMessage() for it in caplog.records if it.name == logger]


def looks(double: TelegramDouble) -> int:
    """How often Telegram was asked."""
    return sum(method.lower() == "getwebhookinfo" for method, _ in double.calls)


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
async def test_a_restart_neither_repeats_nor_forgets(double: TelegramDouble, world: World) -> None:
    """The state of each alert lives in the store."""
    double.set_webhook(OLD)
    async with world.watched():
        await world.until_told(("firing", "webhook_url_drift"))
    assert set(world.shelf.texts) == {"webhook_url_drift", "probe:memory", "probe:deaths"}

    world.board = Board(world.instance)
    async with world.watched():
        seen = looks(double)
        await world.until(lambda: looks(double) >= seen + 3)
        assert world.numbers.firing == {"webhook_url_drift"}
    assert world.notes.kinds == [("firing", "webhook_url_drift")]

    double.set_webhook(URL)
    world.board = Board(world.instance)
    async with world.watched():
        await world.until_told(("firing", "webhook_url_drift"), ("resolved", "webhook_url_drift"))
    assert set(world.shelf.texts) == {"probe:memory", "probe:deaths"}


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


def mismatch() -> str:
    """What the store holds of a mismatch that was just seen."""
    now = time.time()
    return dump_memory(Memory(checked_at=now, webhook=Webhook(URL, 1), mismatch_at=now))


@pytest.mark.usefixtures("quick")
async def test_a_mismatch_that_telegram_showed_is_told_by_one(
    double: TelegramDouble, world: World
) -> None:
    """An instance that does not probe has nothing to say of what it did not refuse."""
    double.api_fault = "500"
    other = World(world.bot, world.shelf).named("vps-2")
    world.shelf.holder = "vps-1"
    world.shelf.texts["probe:memory"] = mismatch()
    world.settings = replace(SETTINGS, interval=3600.0, limits=Limits(fire_after=1000))
    async with other.watched():
        await other.until(lambda: other.board.memory.mismatch_at is not None)
        await other.evaluated()
        async with world.watched():
            await world.until_told(("firing", "webhook_secret_mismatch"))
            await other.until(lambda: other.numbers.firing == {"webhook_secret_mismatch"})
            assert "webhook_secret_mismatch" in world.shelf.texts
    assert other.notes.told == []


@pytest.mark.usefixtures("quick")
async def test_a_mismatch_is_none_without_a_token() -> None:
    """Nobody looks any more whether it is still one, and a token that comes later asks anew."""
    world = World(None)
    world.shelf.texts["probe:memory"] = mismatch()
    async with world.watched():
        await world.until(lambda: "mismatch_at" not in world.shelf.texts["probe:memory"])
        await world.evaluated()
    assert world.notes.kinds == []


@pytest.mark.usefixtures("quick")
async def test_old_rejections_are_no_news_to_whoever_takes_over(
    double: TelegramDouble, world: World
) -> None:
    """The probe counts from the last look at Telegram, whichever instance had it."""
    memory = Memory(checked_at=time.time(), webhook=Webhook(URL, 0))
    world.shelf.texts["probe:memory"] = dump_memory(memory)
    world.shelf.holder = "vps-2"
    world.traffic = Traffic(accepted=50, unauthorized=3)
    async with world.watched():
        await world.until(lambda: world.board.loaded)
        double.enqueue()
        world.shelf.holder = "vps-1"
        await world.until_told(("firing", "webhook_pending"), ("firing", "webhook_error"))
        assert world.board.memory.since == Since(0, 0)
        assert world.board.memory.mismatch_at is None


@pytest.mark.usefixtures("quick")
async def test_rejections_before_a_token_are_no_news(world: World) -> None:
    """A token that a reload brings begins with the traffic of its own time."""
    bot, world.bot = world.bot, None
    world.traffic = Traffic(accepted=50, unauthorized=3)
    async with world.watched():
        await world.until(lambda: world.board.prober)
        await world.evaluated()
        world.bot = bot
        await world.until(lambda: bool(world.numbers.seen))
        assert world.board.memory.since == Since(0, 0)


@pytest.mark.usefixtures("quick")
async def test_whoever_probes_leaves_no_traffic_of_before(world: World) -> None:
    """It would be taken for the traffic since, once another instance probes."""
    world.shelf.holder = "vps-2"
    world.traffic = Traffic(9, 1)
    async with world.watched():
        await world.until(lambda: "probe:traffic@vps-1" in world.shelf.texts)
        world.shelf.holder = "vps-1"
        await world.until(lambda: "probe:traffic@vps-1" not in world.shelf.texts)


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


@pytest.mark.usefixtures("quick")
async def test_of_two_instances_one_probes(double: TelegramDouble, world: World) -> None:
    """The other shows what it found, tells only its own alerts, and takes over."""
    shelf = world.shelf
    other = World(world.bot, shelf).named("vps-2")
    double.set_webhook(OLD)
    async with other.watched(), world.watched():
        await until(lambda: bool(world.numbers.seen or other.numbers.seen))
        first, second = (world, other) if world.numbers.seen else (other, world)
        await first.until_told(("firing", "webhook_url_drift"))
        await second.until(lambda: second.numbers.firing == {"webhook_url_drift"})
        assert second.board.snapshot()["webhook"]["url"] == OLD
        second.local = [Finding("route_down", "shop")]
        await second.until_told(("firing", "route_down"))
        await second.until(lambda: f"route_down/shop@{second.instance}" in shelf.texts)
        assert second.numbers.seen == []
        assert first.notes.kinds == [("firing", "webhook_url_drift")]
        shelf.holder = second.instance
        await second.until(lambda: bool(second.numbers.seen))
        double.set_webhook(URL)
        await second.until_told(("firing", "route_down"), ("resolved", "webhook_url_drift"))
    assert first.notes.kinds == [("firing", "webhook_url_drift")]


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("gone", ["role", "token"])
async def test_who_stops_asking_shows_no_numbers(world: World, gone: str) -> None:
    """The last ones would stay for ever, beside those of the instance that asks now."""
    async with world.watched():
        await world.until(lambda: bool(world.numbers.seen))
        if gone == "role":
            world.shelf.holder = "vps-2"
        else:
            world.bot = None
        await world.until(lambda: world.numbers.seen[-1] == (None, None, None))
        await world.evaluated()
    assert world.numbers.seen.count((None, None, None)) == 1
    assert world.numbers.succeeded[-1] is None


@pytest.mark.usefixtures("quick")
async def test_what_other_instances_accept_counts(double: TelegramDouble, world: World) -> None:
    """A few pending updates are no news while another instance takes some."""
    world.shelf.holder = "vps-1"
    world.settings = replace(SETTINGS, interval=0.4)
    other = World(world.bot, world.shelf).named("vps-2")
    other.traffic = Traffic(1, 0)
    async with world.watched(), other.watched():
        await world.until(lambda: "probe:traffic@vps-2" in world.shelf.texts)
        seen = len(world.numbers.seen)
        await world.until(lambda: len(world.numbers.seen) == seen + 2)
        double.enqueue()
        for accepted in range(2, 6):
            other.traffic = Traffic(accepted, 0)
            text = f"[{accepted}, 0]"
            await world.until(lambda: world.shelf.texts["probe:traffic@vps-2"] == text)  # noqa: B023
            seen = len(world.numbers.seen)
            await world.until(lambda: len(world.numbers.seen) > seen)  # noqa: B023
        assert world.numbers.seen[-1][:2] == (True, 1)
        assert ("firing", "webhook_pending") not in world.notes.kinds
        await world.until(lambda: ("firing", "webhook_pending") in world.notes.kinds)


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
async def test_what_dies_between_two_starts_is_told_once(world: World) -> None:
    """A start counts from the last look of the process before it, as the store keeps it."""
    async with world.watched():
        await world.until(lambda: "probe:deaths" in world.shelf.texts)
        await world.until(lambda: world.board.stats is not None)
    world.shelf.found = Stats(2, (), {}, {("shop", "poison"): 1})
    for _ in range(2):
        world.board = Board(world.instance)
        async with world.watched():
            await world.until(lambda: world.board.stats is not None)
            await world.evaluated()
    assert world.notes.kinds == [("firing", "dead_letters")]


@pytest.mark.usefixtures("quick")
async def test_a_route_that_was_down_is_not_up_for_a_restart_alone(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Breakers begin closed; only after a while does that mean something."""
    world.shelf.texts["route_down/shop@vps-1"] = '{"since": 1, "told_at": 9e10, "detail": {}}'
    async with world.watched():
        await world.until(lambda: world.numbers.firing == {"route_down"})
        await world.evaluated()
        assert world.notes.told == []
        monkeypatch.setattr(watch, "SETTLING", 0.0)
        await world.until_told(("resolved", "route_down"))


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


@dataclass
class Pings:
    """A server that counts heartbeats."""

    url: str = ""
    count: int = 0

    async def handle(self, request: web.Request) -> web.Response:
        """One more."""
        self.count += 1
        return web.Response()


@pytest.fixture
async def pings() -> AsyncIterator[Pings]:
    """It listens on the loopback."""
    it = Pings()
    app = web.Application()
    app.router.add_get("/", it.handle)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    it.url = f"http://127.0.0.1:{runner.addresses[0][1]}/"
    yield it
    await runner.cleanup()


@pytest.mark.usefixtures("quick")
async def test_the_heart_beats_while_updates_come_in(
    double: TelegramDouble, world: World, pings: Pings
) -> None:
    """After each healthy cycle; not while the webhook leads elsewhere or Telegram is away."""
    async with notifiers.open_session() as session:
        world.heartbeat = Heartbeat(session, CLOCK, pings.url)
        async with world.watched():
            await world.until(lambda: pings.count >= 3)
            double.set_webhook(OLD)
            await world.until_told(("firing", "webhook_url_drift"))
            await world.evaluated()
            seen, looked = pings.count, looks(double)
            await world.until(lambda: looks(double) >= looked + 3)
            assert pings.count == seen
            double.set_webhook(URL)
            await world.until(lambda: pings.count > seen)
            world.settings = replace(SETTINGS, limits=Limits(fire_after=1000))
            double.api_fault = "500"
            looked = looks(double)
            await world.until(lambda: looks(double) >= looked + 2)
            await world.evaluated()
            seen, looked = pings.count, looks(double)
            await world.until(lambda: looks(double) >= looked + 3)
            assert pings.count == seen


@pytest.mark.usefixtures("quick")
async def test_the_heart_beats_without_a_token(pings: Pings) -> None:
    """Unless the store is down."""
    async with notifiers.open_session() as session:
        world = World(None)
        world.heartbeat = Heartbeat(session, CLOCK, pings.url)
        async with world.watched():
            await world.until(lambda: pings.count >= 2)
            world.local = [Finding("store_down")]
            await world.until_told(("firing", "store_down"))
            await world.evaluated()
            seen = pings.count
            await world.evaluated(6)
            assert pings.count == seen


@pytest.fixture
def server(short_path: Path) -> Iterator[Server]:
    """A store of its own."""
    it = Server("valkey", short_path)
    it.start()
    yield it
    it.stop()


@pytest.mark.usefixtures("quick")
async def test_state_survives_in_a_real_store(
    double: TelegramDouble, world: World, server: Server
) -> None:
    """Two processes, one after the other, tell an alert once."""
    double.set_webhook(OLD)
    for nonce in ("first", "second"):
        identity = Identity("vps-1", nonce)
        store = open_store(
            server.url, prefix="twr", bot="main", identity=identity, dedup_ttl=90_000.0
        )
        stop = anyio.Event()
        board = Board("vps-1")
        inputs = Inputs(lambda: SETTINGS, lambda: world.bot, lambda: Traffic(), list, store)
        outputs = Outputs(lambda: world.sinks, lambda: None, world.numbers, str)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(probe.run, inputs, outputs, board, CLOCK, half, stop)
            await until(lambda: board.firing == {"webhook_url_drift"} and board.prober, 10.0)  # noqa: B023
            stop.set()
        assert "webhook_url_drift" in await store.load_alerts()
        await store.close()
    assert world.notes.kinds == [("firing", "webhook_url_drift")]


def test_a_status_before_the_first_look() -> None:
    """What is not known is null, under the same names."""
    assert Board("vps-1").snapshot() == {
        "webhook": {
            "url": None,
            "expected": None,
            "matches": None,
            "pending": None,
            "last_error": None,
            "last_error_at": None,
            "checked_at": None,
        },
        "alerts": [],
    }


GOOD = '{"since": 5, "told_at": 6, "detail": {}}'


def test_a_board_takes_only_what_it_can_read() -> None:
    """Garbled state is none, another instance's is not ours."""
    board = Board("vps-1")
    texts = {
        "webhook_pending": GOOD,
        "webhook_error": "garbled",
        "route_down/shop@vps-1": GOOD,
        "route_down/shop@vps-2": GOOD,
        "probe:memory": "garbled",
        "probe:deaths": "garbled",
        "probe:traffic@vps-2": "garbled",
    }
    board.restore(texts, str, merge=False)
    board.hear(texts)
    assert set(board.shared) == {"webhook_pending"}
    assert set(board.own) == {"route_down/shop"}
    assert board.memory == Memory()
    assert set(board.unsaved()) == {"route_down/shop@vps-1"}
    board.prober = True
    assert board.unsaved()["webhook_error"] is None
    assert "route_down/shop@vps-2" not in board.unsaved()


def test_an_alert_that_is_over_does_not_come_back_from_the_store() -> None:
    """Our own alerts are read once; after that the board knows better."""
    board = Board("vps-1")
    board.restore({"route_down/shop@vps-1": GOOD}, str, merge=False)
    (notice,) = board.step([], [], lambda alert: True, 60.0, 100.0)
    assert (notice.kind, notice.subject, notice.since) == ("resolved", "shop", 5.0)
    board.restore({"route_down/shop@vps-1": GOOD, "webhook_pending": GOOD}, str, merge=False)
    assert board.firing == {"webhook_pending"}
    assert board.unsaved() == {"route_down/shop@vps-1": None}


def test_traffic_counts_from_the_last_time_it_was_asked() -> None:
    """Ours from the start, another instance's from the second time, a fallen total from zero."""
    board = Board("a")
    board.hear({"probe:traffic@b": "[100, 7]"})
    first = board.traffic_since(Traffic(3, 1))
    board.hear({"probe:traffic@b": "[104, 7]"})
    second = board.traffic_since(Traffic(5, 2))
    board.hear({"probe:traffic@b": "[1, 0]"})
    third = board.traffic_since(Traffic(5, 2))
    assert [(it.accepted, it.unauthorized) for it in (first, second, third)] == [
        (3, 1),
        (6, 1),
        (1, 0),
    ]


def test_traffic_counts_from_the_look_of_another_instance() -> None:
    """What was answered before that look was counted with it, here and everywhere."""
    board = Board("a")
    board.hear({"probe:traffic@b": "[100, 7]"})
    board.memory = Memory(checked_at=1000.0)
    board.count_from_look(Traffic(50, 3))
    board.hear({"probe:traffic@b": "[104, 7]"})
    board.count_from_look(Traffic(52, 3))
    assert board.traffic_since(Traffic(53, 4)) == Since(7, 1)


def test_a_window_forgets() -> None:
    """Growth counts for so many seconds, from the first look on."""
    window = Window(300.0)
    assert window.growth(2, 1000.0) == 2
    assert not window.covered(1299.0)
    assert window.growth(5, 1100.0) == 5
    assert window.growth(5, 1299.0) == 5
    assert window.growth(5, 1300.0) == 3
    assert window.covered(1300.0)
    assert window.growth(6, 1400.0) == 1
    assert window.growth(6, 1700.0) == 0


@pytest.mark.usefixtures("quick")
async def test_whoever_probes_ends_the_alerts_of_an_instance_that_is_gone(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once, with the name of the one whose alert it was, and nobody else does."""
    world.shelf.texts["route_down/shop@vps-2"] = GOOD
    world.shelf.silences["vps-2"] = 301.0
    monkeypatch.setattr(leavings, "WATCHED", 0.1)
    world.shelf.holder = "vps-3"
    async with world.watched():
        await world.evaluated()
        assert "route_down/shop@vps-2" in world.shelf.texts
        world.shelf.holder = "vps-1"
        await world.until_told(("resolved", "route_down"))
        await world.evaluated()
    assert [notifiers.line(it) for it in world.notes.told] == [
        "ALERT resolved route_down route=shop instance_gone=vps-2"
    ]
    assert "route_down/shop@vps-2" not in world.shelf.texts


@pytest.mark.usefixtures("quick")
async def test_no_secret_of_a_url_is_kept_in_the_store(
    double: TelegramDouble, world: World
) -> None:
    """The URL is compared all the same: with one of another secret it differs, with its own not."""
    world.secret = "hidden-word"
    double.set_webhook(f"{URL}/hidden-word")
    world.settings = replace(SETTINGS, wanted=Wanted(f"{URL}/***", 40, None))
    async with world.watched():
        await world.until_told(("firing", "webhook_url_drift"))
        world.settings = replace(SETTINGS, wanted=Wanted(f"{URL}/hidden-word", 40, None))
        await world.until(lambda: ("resolved", "webhook_url_drift") in world.notes.kinds)
    assert f"{URL}/***" in world.shelf.texts["probe:memory"]
    assert "hidden-word" not in str(world.shelf.texts)


@pytest.mark.usefixtures("quick")
async def test_a_secret_that_was_kept_in_the_store_is_taken_out(world: World) -> None:
    """By whoever probes, also where nobody can be asked about the webhook any more."""
    world.secret, world.bot = "hidden-word", None
    kept = Memory(checked_at=5.0, webhook=Webhook(f"{URL}/hidden-word", 0))
    world.shelf.texts["probe:memory"] = dump_memory(kept)
    async with world.watched():
        await world.until(lambda: "***" in world.shelf.texts["probe:memory"])
    assert "hidden-word" not in str(world.shelf.texts)
