"""What the Bot API says: no secret is repeated, wherever its text was cut."""

import json

import pytest

from hooks import Hook, reply
from leaks import leaks
from twr.core.masking import Mask
from twr.edges.telegram import Telegram
from twr.errors import TelegramError

pytestmark = pytest.mark.anyio

BARE = "AAqV7fXz2LmKp9RwTduJ4xNe8bYg6sHcQ"
TOKEN = f"7012345678:{BARE}"
SECRET = "mW3kZt8QvBn5Jx"
HIDDEN = (BARE, SECRET)


def client(server: Hook) -> Telegram:
    mask = Mask([SECRET])
    return Telegram(f"http://127.0.0.1:{server.port}", TOKEN, mask=lambda: mask)


@pytest.mark.parametrize("said", [TOKEN, BARE, SECRET], ids=["token", "token without id", "secret"])
@pytest.mark.parametrize("pad", [0, *range(260, 304)])
async def test_a_refusal(said: str, pad: int) -> None:
    """Of its text 300 characters are kept, counted without the secrets."""
    answer = {"ok": False, "error_code": 400, "description": "." * pad + said}
    async with (
        Hook(answer=reply(400, body=json.dumps(answer).encode())) as server,
        client(server) as bot,
    ):
        with pytest.raises(TelegramError) as caught:
            await bot.get_me()
    told = f"{'.' * pad}***"
    assert str(caught.value) == (
        f"Telegram refused: 400 {told if len(told) <= 300 else told[:299] + '…'}"
    )


@pytest.mark.parametrize("length", range(6, len(SECRET)))
async def test_what_went_wrong_with_the_webhook(length: int) -> None:
    """Telegram quotes what our own proxy said of its request, and cuts it."""
    cut = f"Wrong response from the webhook: 401 {SECRET} {SECRET[:length]}"
    result = {
        "url": "https://bot.example/hook",
        "pending_update_count": 1,
        "last_error_date": 1793000000,
        "last_error_message": cut,
        "ip_address": TOKEN,
    }
    body = json.dumps({"ok": True, "result": result}).encode()
    async with Hook(answer=reply(body=body)) as server, client(server) as bot:
        info = await bot.get_webhook_info()
    assert info.last_error_message == "Wrong response from the webhook: 401 *** ***"
    assert info.ip_address == "***"
    assert leaks(str(info), HIDDEN) == []


@pytest.mark.parametrize("said", [TOKEN, BARE, SECRET], ids=["token", "token without id", "secret"])
@pytest.mark.parametrize("length", [2047, *range(2049, 2100, 7)])
async def test_a_url_that_is_cut(said: str, length: int) -> None:
    """Of a URL 2048 characters are kept, counted without the secrets."""
    start = "https://bot.example/"
    url = f"{start}{'.' * (length - len(start) - len(said))}{said}{'.' * 60}"
    body = json.dumps({"ok": True, "result": {"url": url, "pending_update_count": 0}}).encode()
    async with Hook(answer=reply(body=body)) as server, client(server) as bot:
        info = await bot.get_webhook_info()
    told = url.replace(said, "***")
    assert info.url == (told if len(told) <= 2048 else told[:2047] + "…")


async def test_a_url_that_is_not_cut_can_be_compared() -> None:
    """It is what was registered, also where that holds a secret."""
    url = f"https://bot.example/{SECRET}"
    body = json.dumps({"ok": True, "result": {"url": url, "pending_update_count": 0}}).encode()
    async with Hook(answer=reply(body=body)) as server, client(server) as bot:
        assert (await bot.get_webhook_info()).url == url


async def test_the_word_for_a_webhook_that_was_set() -> None:
    """It may repeat what it was given."""
    body = json.dumps({"ok": True, "result": True, "description": f"set {SECRET}"}).encode()
    async with Hook(answer=reply(body=body)) as server, client(server) as bot:
        word = await bot.set_webhook(
            "https://bot.example/", secret_token=SECRET, allowed_updates=(), max_connections=1
        )
    assert word == "set ***"
