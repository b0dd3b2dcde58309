"""What an instance that is gone leaves behind, on a store of its own."""

import fakeredis
import pytest

from fakes import fake_redis, fake_script
from twr.core.alerting import Alert, Notice, dump
from twr.core.clock import Clock
from twr.edges.store import Identity, Store
from twr.edges.store.client import Client
from twr.edges.store.keys import Keys
from twr.services.probe.leavings import Leavings

pytestmark = pytest.mark.anyio

KEYS = Keys("twr", "main")
NOW = 1_790_000_000.0
DOWN = Alert("route_down", "shop", NOW - 900, NOW - 900, (("failures", 5),))
TEXT = dump(DOWN)
OVER = Notice("resolved", "route_down", "shop", (), NOW - 900, NOW, "vps-2")


class World:
    """A store, with processes of several names on it."""

    def __init__(self) -> None:
        self._server = fakeredis.FakeServer()
        self.redis = fake_redis(self._server)
        self.store = self.process("vps-1")
        self.monotonic = 7.0
        self.leavings = Leavings(self.store, "vps-1", Clock(lambda: NOW, lambda: self.monotonic))

    def process(self, instance: str) -> Store:
        """A process of that name."""
        client = Client(fake_redis(self._server), KEYS.tag, fake_script)
        return Store(client, KEYS, Identity(instance, f"nonce-{instance}"), 90_000)

    async def silent(self, instance: str, seconds: float) -> None:
        """It has beaten, and not for so long."""
        await self.process(instance).beat([], take_over=True)
        beat = await self.redis.hget(KEYS.instance(instance), "heartbeat")
        past = int(beat or 0) - int(seconds * 1000)
        await self.redis.hset(KEYS.instance(instance), "heartbeat", str(past))

    async def look(self, later: float = 0.0) -> tuple[Notice, ...]:
        """As the instance that probes does it, so many seconds later."""
        self.monotonic += later
        return await self.leavings.clear(await self.store.load_alerts())

    async def looks(self) -> tuple[Notice, ...]:
        """Two looks, a minute apart."""
        assert await self.look() == ()
        return await self.look(60.0)


@pytest.fixture
def world() -> World:
    """With nothing in it."""
    return World()


async def test_an_alert_of_an_instance_that_is_gone_is_over_once(world: World) -> None:
    """It is told with the instance's name, and forgotten."""
    await world.silent("vps-2", 301)
    await world.store.save_alerts({"route_down/shop@vps-2": TEXT, "webhook_pending": TEXT})
    assert await world.looks() == (OVER,)
    assert await world.looks() == ()
    assert await world.store.load_alerts() == {"webhook_pending": TEXT}


@pytest.mark.parametrize("silence", [0, 290])
async def test_an_instance_that_starts_again_keeps_its_alerts(world: World, silence: int) -> None:
    """A restart of its machine takes minutes."""
    await world.silent("vps-2", silence)
    await world.store.save_alerts({"route_down/shop@vps-2": TEXT, "probe:traffic@vps-2": "[1, 0]"})
    assert await world.looks() == ()
    assert len(await world.store.load_alerts()) == 2


async def test_what_is_ours_is_not_looked_at(world: World) -> None:
    """Whoever clears is there, however long its last beat is ago."""
    await world.silent("vps-1", 9000)
    await world.store.save_alerts({"route_down/shop@vps-1": TEXT})
    assert await world.looks() == ()
    assert await world.store.load_alerts() == {"route_down/shop@vps-1": TEXT}


async def test_an_instance_that_the_store_does_not_know_is_gone(world: World) -> None:
    """Its record ends after a month; one that has just begun beats in a moment."""
    await world.store.save_alerts({"route_down/shop@vps-2": TEXT})
    assert await world.looks() == (OVER,)


async def test_after_an_outage_of_the_store_nobody_is_gone(world: World) -> None:
    """All have been silent for as long; whoever lives beats again within the minute."""
    await world.store.save_alerts({"route_down/shop@vps-2": TEXT})
    await world.silent("vps-2", 900)
    assert await world.look() == ()
    assert await world.look(59.0) == ()
    await world.silent("vps-2", 0)
    assert await world.look(1.0) == ()
    await world.silent("vps-2", 301)
    assert await world.look(1.0) == ()
    assert await world.look(61.0) == ()
    assert await world.look(60.0) == (OVER,)


async def test_what_is_no_alert_goes_untold(world: World) -> None:
    """The traffic of an instance that is gone, and a text that nobody can read."""
    await world.silent("vps-2", 301)
    texts = {"probe:traffic@vps-2": "[1, 0]", "route_down/a@vps-2": "garbled", "probe:memory": "{}"}
    await world.store.save_alerts(texts)
    assert await world.looks() == ()
    assert await world.store.load_alerts() == {"probe:memory": "{}"}
