"""The state of the probe in the store: over restarts, and of several instances."""

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from servers import Server
from services.probing import CLOCK, GOOD, OLD, SETTINGS, URL, World, half, looks
from twr.core.drift import Limits, Memory, Since, Wanted, dump_memory
from twr.core.findings import Finding
from twr.core.jobs import Stats
from twr.core.webhook_info import Webhook
from twr.double import TelegramDouble
from twr.edges import notifiers
from twr.edges.store import Identity, open_store
from twr.services import probe
from twr.services.probe import Board, Inputs, Outputs, Traffic, leavings, watch
from until import until

pytestmark = pytest.mark.anyio


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
