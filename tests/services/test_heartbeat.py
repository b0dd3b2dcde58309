"""The heartbeat of the probe."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, replace

import pytest
from aiohttp import web

from services.probing import CLOCK, OLD, SETTINGS, URL, World, looks
from twr.core.drift import Limits
from twr.core.findings import Finding
from twr.double import TelegramDouble
from twr.edges import notifiers
from twr.edges.notifiers import Heartbeat

pytestmark = pytest.mark.anyio


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
