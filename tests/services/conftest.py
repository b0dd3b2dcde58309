"""What the tests of the services may use."""

from collections.abc import AsyncIterator

import pytest

from services.probing import URL, World
from twr.double import TelegramDouble
from twr.edges.telegram import Telegram
from twr.services.probe import watch


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
