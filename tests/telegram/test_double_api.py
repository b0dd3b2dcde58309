"""The Bot API side of the double: tokens, settings, what getWebhookInfo tells and what it keeps."""

from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from hooks import Hook, reply
from twr.double import FAULTS, TelegramDouble

pytestmark = pytest.mark.anyio

SCALE = 0.01
URL = "https://panel.example/hook"


@pytest.fixture
async def double() -> AsyncIterator[TelegramDouble]:
    """A double in fast motion; panel.example leads to a port that nobody listens on."""
    names = {"panel.example": "http://127.0.0.1:1", "other.example": "http://127.0.0.1:1"}
    async with TelegramDouble(time_scale=SCALE, resolve=names, local=False) as double:
        yield double


async def call(
    double: TelegramDouble, method: str, token: str | None = None, **params: Any
) -> dict[str, Any]:
    """What the Bot API answers to a call with JSON parameters."""
    url = f"{double.api_url}/bot{double.token if token is None else token}/{method}"
    async with aiohttp.ClientSession() as session, session.post(url, json=params) as response:
        answer = await response.json()
        assert isinstance(answer, dict)
        assert response.status == answer.get("error_code", 200)
        return answer


async def info(double: TelegramDouble) -> dict[str, Any]:
    """The result of getWebhookInfo."""
    result = (await call(double, "getWebhookInfo"))["result"]
    assert isinstance(result, dict)
    return result


@pytest.mark.parametrize(
    ("token", "expected"),
    [("1:wrong", (401, "Unauthorized")), ("no-colon", (404, "Not Found"))],
)
async def test_wrong_token(double: TelegramDouble, token: str, expected: tuple[int, str]) -> None:
    """A token of another bot is unauthorized, one of the wrong form not found."""
    answer = await call(double, "getMe", token=token)
    assert (answer["error_code"], answer["description"]) == expected
    assert answer["ok"] is False


async def test_unknown_method(double: TelegramDouble) -> None:
    """A method that does not exist is not found."""
    assert (await call(double, "getEverything"))["error_code"] == 404


async def test_methods_are_found_in_any_case(double: TelegramDouble) -> None:
    """Method names compare without case, and parameters may stand in the query."""
    url = f"{double.api_url}/bot{double.token}/SENDMESSAGE?chat_id=1&text=hi"
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        assert (await response.json())["ok"] is True
    assert double.sent == [{"chat_id": "1", "text": "hi"}]


async def test_get_me(double: TelegramDouble) -> None:
    """getMe tells the bot's id, from the token, and its name."""
    me = (await call(double, "getMe"))["result"]
    assert (me["id"], me["username"], me["is_bot"]) == (7000000001, "double_bot", True)


async def test_info_of_no_webhook(double: TelegramDouble) -> None:
    """Without a webhook only the three fields that are always there are told."""
    double.enqueue()
    expected = {"url": "", "has_custom_certificate": False, "pending_update_count": 1}
    assert await info(double) == expected


async def test_info_of_a_webhook(double: TelegramDouble) -> None:
    """All settings are told but the secret, and allowed_updates only when not the default."""
    answer = await call(
        double,
        "setWebhook",
        url=URL,
        secret_token="s3cret",
        max_connections=7,
        allowed_updates=["poll"],
    )
    assert answer == {"ok": True, "result": True, "description": "Webhook was set"}
    assert await info(double) == {
        "url": URL,
        "has_custom_certificate": False,
        "pending_update_count": 0,
        "max_connections": 7,
        "ip_address": "127.0.0.1",
        "allowed_updates": ["poll"],
    }
    assert double.webhook is not None
    assert double.webhook.secret == "s3cret"


async def set_webhook(double: TelegramDouble, **params: Any) -> dict[str, Any]:
    """What setWebhook answers once the last one is a second ago."""
    while (answer := await call(double, "setWebhook", **params)).get("error_code") == 429:
        pass
    return answer


async def test_allowed_updates_stay_when_absent(double: TelegramDouble) -> None:
    """setWebhook without allowed_updates keeps the list, with an empty one it is the default."""
    await set_webhook(double, url=URL, allowed_updates=["poll"])
    await set_webhook(double, url=URL, max_connections=9)
    assert (await info(double))["allowed_updates"] == ["poll"]
    answer = await set_webhook(double, url=URL, max_connections=9, allowed_updates=[])
    assert answer["description"] == "Webhook is already set"
    assert "allowed_updates" not in await info(double)


async def test_last_error_outlives_success_and_the_same_settings(double: TelegramDouble) -> None:
    """Neither a success nor setting the same again clears last_error; a change does."""
    async with Hook(answer=reply(301, "Moved Permanently")) as hook:
        double.resolve["panel.example"] = f"http://127.0.0.1:{hook.port}"
        double.set_webhook(URL)
        double.enqueue()
        await double.until(lambda: len(double.deliveries) == 1)
        told = await info(double)
        assert told["pending_update_count"] == 1
        assert told["last_error_message"] == (
            "Wrong response from the webhook: 301 Moved Permanently"
        )
        hook.answer = reply()
        await double.drained()
    assert (await info(double))["last_error_date"] == told["last_error_date"]
    answer = await set_webhook(double, url=URL)
    assert answer["description"] == "Webhook is already set"
    assert (await info(double))["last_error_date"] == told["last_error_date"]
    await set_webhook(double, url="https://other.example/hook")
    assert "last_error_date" not in await info(double)


async def test_pending_counts_what_is_in_flight(double: TelegramDouble) -> None:
    """An update on its way is still pending."""
    async with Hook() as hook:

        async def look(seen: object) -> bytes:
            assert double.in_flight == 1
            assert (await info(double))["pending_update_count"] == 1
            return reply()

        hook.answer = look
        double.resolve["panel.example"] = f"http://127.0.0.1:{hook.port}"
        double.set_webhook(URL)
        await double.push()
        assert (await info(double))["pending_update_count"] == 0


async def test_set_webhook_makes_no_request(double: TelegramDouble) -> None:
    """Setting a webhook asks nothing of it."""
    async with Hook() as hook:
        double.resolve["panel.example"] = f"http://127.0.0.1:{hook.port}"
        await set_webhook(double, url=URL)
        await double.push()
        assert len(hook.seen) == 1


@pytest.mark.parametrize(
    ("params", "description"),
    [
        ({"url": "http://panel.example/"}, "An HTTPS URL must be provided for webhook"),
        (
            {"url": "https://panel.example:8080/"},
            "Webhook can be set up only on ports 80, 88, 443 or 8443",
        ),
        (
            {"url": "https://nowhere.example/"},
            "Failed to resolve host: Name or service not known",
        ),
    ],
)
async def test_bad_webhooks(
    double: TelegramDouble, params: dict[str, str], description: str
) -> None:
    """A webhook that Telegram would not send to is refused and leaves all as it was."""
    answer = await set_webhook(double, **params)
    assert answer == {
        "ok": False,
        "error_code": 400,
        "description": f"Bad Request: bad webhook: {description}",
    }
    assert double.webhook is None


async def test_twice_within_a_second() -> None:
    """The second setWebhook within 1 s is told to wait."""
    async with TelegramDouble(resolve={"panel.example": "http://127.0.0.1:1"}) as double:
        await call(double, "setWebhook", url=URL)
        assert await call(double, "setWebhook", url=URL) == {
            "ok": False,
            "error_code": 429,
            "description": "Too Many Requests: retry after 1",
            "parameters": {"retry_after": 1},
        }


async def test_delete_webhook(double: TelegramDouble) -> None:
    """deleteWebhook, or setting an empty URL, removes it, with the pending updates if asked."""
    double.enqueue()
    double.set_webhook(URL)
    assert (await call(double, "deleteWebhook"))["description"] == "Webhook was deleted"
    assert (await set_webhook(double, url=""))["description"] == "Webhook is already deleted"
    assert double.pending == 1
    await call(double, "deleteWebhook", drop_pending_updates=True)
    assert double.pending == 0


async def test_set_webhook_may_drop_what_is_pending(double: TelegramDouble) -> None:
    """drop_pending_updates empties the queue, even when nothing else changes."""
    double.enqueue()
    await set_webhook(double, url=URL)
    await set_webhook(double, url=URL, drop_pending_updates=True)
    assert double.pending == 0


async def test_get_updates(double: TelegramDouble) -> None:
    """getUpdates works without a webhook, an offset confirms; with a webhook it conflicts."""
    ids = [double.enqueue() for _ in range(3)]
    updates = (await call(double, "getUpdates", limit=2))["result"]
    assert [update["update_id"] for update in updates] == ids[:2]
    updates = (await call(double, "getUpdates", offset=ids[2]))["result"]
    assert [update["update_id"] for update in updates] == ids[2:]
    double.set_webhook(URL)
    assert (await call(double, "getUpdates"))["error_code"] == 409


@pytest.mark.parametrize(
    ("params", "description"),
    [
        ({"text": "hi"}, "Bad Request: chat_id is empty"),
        ({"chat_id": 1}, "Bad Request: message text is empty"),
        ({"chat_id": 1, "text": "x" * 4097}, "Bad Request: message is too long"),
    ],
)
async def test_messages_that_are_refused(
    double: TelegramDouble, params: dict[str, Any], description: str
) -> None:
    """A message needs a chat and 1 to 4096 characters."""
    assert (await call(double, "sendMessage", **params))["description"] == description
    assert double.sent == []


async def test_unknown_fault(double: TelegramDouble) -> None:
    """A fault that does not exist is an error where it is set, not where it would show."""
    with pytest.raises(ValueError, match="no such fault: 50O"):
        double.api_fault = "50O"
    assert "500" in FAULTS


async def test_calls_are_recorded(double: TelegramDouble) -> None:
    """Every call is kept with its parameters, whatever was answered."""
    double.api_fault = "500"
    await call(double, "sendMessage", chat_id=1, text="hi")
    assert double.calls == [("sendMessage", {"chat_id": 1, "text": "hi"})]
    assert double.sent == []
