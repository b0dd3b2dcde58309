"""The webhook at Telegram: show it, set it, remove it, and see whether updates flow again."""

from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import anyio

from twr.config import Config, Secrets
from twr.core.clock import Clock
from twr.core.text import clip, escape
from twr.core.webhook_info import shown_url
from twr.core.webhook_url import is_official, refusal
from twr.edges.front import Answer
from twr.edges.telegram import WebhookInfo
from twr.errors import ConfigError, TelegramRefused, TelegramUnreachable

LOOK_EVERY = 0.5
_LONGEST_PAUSE = 10
_MAX_ERROR = 300

Say = Callable[[str], None]


class BotApi(Protocol):
    """The part of the Bot API that the webhook commands need."""

    async def get_webhook_info(self) -> WebhookInfo: ...
    async def set_webhook(
        self,
        url: str,
        *,
        secret_token: str,
        allowed_updates: tuple[str, ...],
        max_connections: int,
        drop_pending_updates: bool = False,
    ) -> str: ...
    async def delete_webhook(self, *, drop_pending_updates: bool = False) -> str: ...


@dataclass(frozen=True, slots=True)
class Order:
    """What to register, the secret apart. No `allowed_updates` are Telegram's default."""

    url: str
    allowed_updates: tuple[str, ...]
    max_connections: int
    drop_pending: bool = False


def order(config: Config, *, drop_pending: bool = False) -> Order:
    """What the configuration wants registered.

    ConfigError where it has no webhook_url, or one that Telegram would refuse.
    """
    url = config.bot.webhook_url
    if url is None:
        raise ConfigError([config.problem(("bot", "webhook_url"), "give the public URL")])
    reason = refusal(url) if is_official(config.bot.api_url) else None
    if reason is not None:
        problem = f"Telegram would refuse it: {reason}"
        raise ConfigError([config.problem(("bot", "webhook_url"), problem)])
    return Order(url, config.allowed_updates, config.bot.max_connections, drop_pending)


def bot_token(config: Config, secrets: Secrets) -> str:
    """The token to talk to Telegram with. ConfigError where there is none."""
    if secrets.bot_token is None:
        problem = "without the bot token there is no talking to Telegram"
        raise ConfigError([config.problem(("bot", "token_env"), problem)])
    return secrets.bot_token


def newest_secret(config: Config, secrets: Secrets) -> str:
    """The secret to register: of two, the newer. ConfigError where there is none."""
    if not secrets.webhook:
        problem = "without a secret anybody could send updates"
        raise ConfigError([config.problem(("bot", "secret_token_env"), problem)])
    return secrets.webhook[0].decode()


def lines(info: WebhookInfo, now: float) -> list[str]:
    """The webhook for a person; `now` in unix seconds. The first line is url and pending."""
    url = escape(shown_url(info.url)) if info.url else "(no webhook is set)"
    found = [f"{url}  pending {info.pending_update_count}"]
    if info.last_error_date is not None:
        text = escape(clip(info.last_error_message or "", _MAX_ERROR))
        found.append(f'last error {_ago(now - info.last_error_date)} ago: "{text}"')
    if info.url:
        types = (
            "Telegram's default"
            if not info.allowed_updates
            else ", ".join(escape(name) for name in info.allowed_updates)
        )
        found.append(f"allowed_updates {types}; max_connections {info.max_connections}")
    if info.ip_address:
        found.append(f"ip_address {escape(info.ip_address)}")
    return found


def as_json(info: WebhookInfo, expected: str | None) -> dict[str, Any]:
    """The webhook for a program: Telegram's names, and whether it is where it should be."""
    url = shown_url(info.url)
    matches = None if expected is None else info.url == expected
    return {**asdict(info), "url": url, "expected": expected, "matches": matches}


def drift_hint(info: WebhookInfo, expected: str | None) -> str | None:
    """What to do when the webhook is not where the configuration has it; None when it is."""
    if expected is None or info.url == expected:
        return None
    return f"expected {escape(shown_url(expected))}: `twr webhook set` registers it"


def front_warning(url: str, answer: Answer) -> str | None:
    """What is wrong with how the public URL answered a wrong secret; None if twr answered."""
    start = f"warning: {escape(shown_url(url))}"
    if answer.failure is not None:
        return f"{start} is not reached from here: {answer.failure}"
    if answer.leads_to is not None:
        return (
            f"{start} answers {answer.status}, a redirect to {answer.leads_to}; Telegram follows "
            "none, so no update would arrive: set bot.webhook_url to where it leads"
        )
    if answer.status in (401, 403) and answer.word in ("unauthorized", "forbidden"):
        return None
    if 200 <= answer.status <= 299:
        return f"{start} takes a wrong secret ({answer.status}): it is not twr that answers there"
    return f"{start} answers {answer.status}, but not as twr does: is twr running behind it?"


async def register(
    bot: BotApi,
    order: Order,
    secret: str,
    *,
    say: Say,
    knock: Callable[[str], Awaitable[Answer]],
    clock: Clock,
    wait: float,
) -> bool:
    """Set the webhook, saying what was and what is; False when updates do not flow afterwards.

    `wait` seconds are given to the pending updates; 0 is not to look. Raises TelegramError.
    """
    before = await bot.get_webhook_info()
    _say_all(say, "before: ", lines(before, clock.time()))
    warning = front_warning(order.url, await knock(order.url))
    if warning is not None:
        say(warning)
    word = await _patiently(lambda: _set(bot, order, secret))
    say(f"Telegram: {word}")
    after = await bot.get_webhook_info()
    _say_all(say, "after:  ", lines(after, clock.time()))
    if after.url != order.url:
        say("Telegram holds another URL than the one just set: does something else set it too?")
        return False
    return await _watch(bot, max(before, after, key=_pending), after, say, clock, wait)


async def remove(bot: BotApi, *, drop_pending: bool, say: Say, clock: Clock) -> bool:
    """Delete the webhook, saying what was and what is. Raises TelegramError."""
    _say_all(say, "before: ", lines(await bot.get_webhook_info(), clock.time()))
    word = await bot.delete_webhook(drop_pending_updates=drop_pending)
    say(f"Telegram: {word}")
    after = await bot.get_webhook_info()
    _say_all(say, "after:  ", lines(after, clock.time()))
    return after.url == ""


async def _set(bot: BotApi, order: Order, secret: str) -> str:
    return await bot.set_webhook(
        order.url,
        secret_token=secret,
        allowed_updates=order.allowed_updates,
        max_connections=order.max_connections,
        drop_pending_updates=order.drop_pending,
    )


async def _patiently(call: Callable[[], Awaitable[str]]) -> str:
    """`call`, and once more when Telegram only asks for a short pause (429)."""
    try:
        return await call()
    except TelegramRefused as refused:
        pause = refused.retry_after
        if refused.code != 429 or pause is None or pause > _LONGEST_PAUSE:
            raise
    await anyio.sleep(pause)
    return await call()


async def _watch(
    bot: BotApi, start: WebhookInfo, info: WebhookInfo, say: Say, clock: Clock, wait: float
) -> bool:
    began = clock.monotonic()
    while info.pending_update_count and clock.monotonic() < began + wait:
        await anyio.sleep(LOOK_EVERY)
        info = await _look(bot, info)
    return _verdict(start, info, clock.monotonic() - began, say, watched=wait > 0)


async def _look(bot: BotApi, last: WebhookInfo) -> WebhookInfo:
    try:
        return await bot.get_webhook_info()
    except TelegramUnreachable:
        return last


def _verdict(
    start: WebhookInfo, info: WebhookInfo, seconds: float, say: Say, *, watched: bool
) -> bool:
    first, last = start.pending_update_count, info.pending_update_count
    if first == 0 and last == 0:
        say("nothing is pending")
        return True
    if not watched:
        return True
    if last < first:
        say(f"pending has fallen from {first} to {last} in {seconds:.1f} s")
        return True
    text = escape(clip(info.last_error_message or "", _MAX_ERROR))
    reason = f'; Telegram says: "{text}"' if info.last_error_date is not None else ""
    say(f"pending is {last} after {seconds:.0f} s, and has not fallen{reason}")
    return False


def _pending(info: WebhookInfo) -> int:
    return info.pending_update_count


def _say_all(say: Say, label: str, told: list[str]) -> None:
    say(label + told[0])
    for line in told[1:]:
        say(" " * len(label) + line)


def _ago(seconds: float) -> str:
    """`seconds` in the largest unit that fits."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds // size:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"
