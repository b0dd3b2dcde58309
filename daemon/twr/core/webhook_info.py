"""What Telegram tells of the webhook (getWebhookInfo), and what is remembered of it."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol
from urllib.parse import urlsplit

from twr.core.text import clip

MAX_ERROR = 300
"""Characters of an error text that are remembered and shown."""

MAX_URL = 2048
MAX_NUMBER = 2**31 - 1

MAX_DATE = 253402300799
"""The last second of the year 9999; a date beyond it is none."""


class Told(Protocol):
    """What getWebhookInfo told: dates in unix seconds, no `url` is "".

    `allowed_updates` is None where Telegram's default holds.
    """

    @property
    def url(self) -> str: ...
    @property
    def pending_update_count(self) -> int: ...
    @property
    def ip_address(self) -> str | None: ...
    @property
    def last_error_date(self) -> int | None: ...
    @property
    def last_error_message(self) -> str | None: ...
    @property
    def max_connections(self) -> int | None: ...
    @property
    def allowed_updates(self) -> tuple[str, ...] | None: ...


@dataclass(frozen=True, slots=True)
class Webhook:
    """The last answer of getWebhookInfo, as far as it is remembered.

    The URL may hold a secret: `url` is for people, `url_digest` is what it is told apart by (None
    where `url` is as it came, as it once was kept).
    """

    url: str
    pending: int
    ip_address: str | None = None
    last_error_date: int | None = None
    last_error_message: str | None = None
    max_connections: int | None = None
    allowed_updates: tuple[str, ...] | None = None
    url_digest: str | None = None


def remembered(told: Told, mask: Callable[[str], str]) -> Webhook:
    """The answer within bounds, so that it can be stored, counted and shown whatever it was.

    `mask` takes the secrets out of its URL; all other texts come without.
    """
    kinds = told.allowed_updates
    return Webhook(
        url=_url_for_people(told.url, mask),
        url_digest=digest(told.url),
        pending=_number(told.pending_update_count),
        ip_address=plain(told.ip_address or "", MAX_ERROR) or None,
        last_error_date=_date(told.last_error_date),
        last_error_message=plain(told.last_error_message or "", MAX_ERROR) or None,
        max_connections=None if told.max_connections is None else _number(told.max_connections),
        allowed_updates=None if kinds is None else tuple(plain(it, MAX_ERROR) for it in kinds),
    )


def sealed(webhook: Webhook, mask: Callable[[str], str]) -> Webhook:
    """One whose URL was kept as it came, as `remembered` makes it now."""
    if webhook.url_digest is not None:
        return webhook
    url = _url_for_people(webhook.url, mask)
    return replace(webhook, url=url, url_digest=digest(webhook.url))


def shown_url(url: str) -> str:
    """`url` without the user and password it may hold."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "(not a URL)"
    login, at, host = parts.netloc.rpartition("@")
    return parts._replace(netloc=f"***@{host}").geturl() if at and login else url


def digest(url: str) -> str:
    """What tells a URL apart from any other without telling what it is."""
    return hashlib.sha256(url.encode(errors="surrogatepass")).hexdigest()


def plain(told: str, limit: int) -> str:
    """At most `limit` characters of a text, which can be encoded."""
    return clip(told, limit).encode(errors="replace").decode()


def _url_for_people(url: str, mask: Callable[[str], str]) -> str:
    return plain(shown_url(mask(url)), MAX_URL)


def _number(told: int) -> int:
    return min(max(told, 0), MAX_NUMBER)


def _date(told: int | None) -> int | None:
    return told if told is not None and 0 < told <= MAX_DATE else None
