"""Unmodified bot frameworks behind the real daemon, with a Telegram double on both sides."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from receiving.page import program, running
from system.harness import SECRET, Daemon, free_port
from twr.double import TelegramDouble

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(300)]

TOKEN = "shop-token_1"
FRAMEWORKS = ("aiogram", "python-telegram-bot")


@asynccontextmanager
async def behind_twr(
    framework: str, python: Path, directory: Path, told: str
) -> AsyncIterator[tuple[TelegramDouble, Daemon]]:
    """The page's bot, a daemon in front of it, and the Telegram that both talk to.

    `told` is the secret token that the bot was given; the route's own is TOKEN.
    """
    source, port = directory / "bot.py", free_port()
    source.write_text(program(framework))
    target = f"http://127.0.0.1:{port}/telegram/updates"
    shop = {"name": "shop", "target_url": target, "secret_token_env": "SHOP_SECRET_TOKEN"}
    runner = Path(__file__).with_name("elsewhere.py")
    async with TelegramDouble() as telegram:
        environ = {"BOT_TOKEN": telegram.token, "SHOP_SECRET_TOKEN": told}
        command = [str(word) for word in (python, runner, telegram.api_url, source)]
        daemon = Daemon(
            directory,
            [shop],
            environ={"BOT_TOKEN": telegram.token, "SHOP_SECRET_TOKEN": TOKEN},
        )
        daemon.settings["bot"] |= {"api_url": telegram.api_url, "webhook_url": daemon.url}
        async with daemon, running(command, port, environ, directory / "bot.log"):
            telegram.set_webhook(daemon.url, secret_token=SECRET)
            yield telegram, daemon


@pytest.mark.parametrize("framework", FRAMEWORKS)
async def test_updates_arrive_and_are_answered(
    framework: str, frameworks: Path, short_path: Path
) -> None:
    """The bot of the page takes each update at the first attempt, handles it, and sends its
    replies; the webhook stays twr's, and the answer to it stays twr's own."""
    async with behind_twr(framework, frameworks, short_path, TOKEN) as (telegram, daemon):
        for text in ("one", "two", "three"):
            await telegram.push("message", text=text)
        await daemon.comes("shop", delivered=3, failed_attempts=0, waiting=0)
        await telegram.until(lambda: len(telegram.sent) == 3)
        assert telegram.webhook is not None
        assert (telegram.webhook.url, telegram.webhook.secret) == (daemon.url, SECRET)
        assert "setwebhook" not in {name.lower() for name, _ in telegram.calls}
        assert telegram.executed == []
    texts = [message["text"] for message in telegram.sent]
    assert texts == [f"{framework}: {text}" for text in ("one", "two", "three")]


@pytest.mark.parametrize(("framework", "status"), [(FRAMEWORKS[0], 401), (FRAMEWORKS[1], 403)])
async def test_a_wrong_secret_token_is_a_retry(
    framework: str, status: int, frameworks: Path, short_path: Path
) -> None:
    """A bot that was given another token refuses; Telegram has its 202, and twr tries again."""
    async with behind_twr(framework, frameworks, short_path, "another") as (telegram, daemon):
        delivery = await telegram.push("message", text="one")
        assert delivery.status == 202
        await daemon.comes("shop", delivered=0, dead=0, waiting=1, failed_attempts=1)
        await daemon.says(f"delivery failed route=shop .*status={status}")
    assert telegram.sent == []
