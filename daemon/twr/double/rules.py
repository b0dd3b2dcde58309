"""What Telegram decides about updates and webhooks, as pure functions: queues, delays, settings."""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

DAY = 86_400.0
MAX_RETRY_AFTER = 3600
MAX_PENDING = 100_000
PORTS = frozenset({443, 80, 88, 8443})

QueueKey = tuple[object, ...]

MESSAGES = ("message", "edited_message", "channel_post", "edited_channel_post")
BUSINESS = ("business_message", "edited_business_message", "deleted_business_messages")

# Which number space a queue lies in, and which field of the update numbers it.
_QUEUES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    **dict.fromkeys(MESSAGES, ("chat", ("chat", "id"))),
    **dict.fromkeys(BUSINESS, ("business chat", ("chat", "id"))),
    "guest_message": ("guest chat", ("chat", "id")),
    "stopped_message_generation": ("stopped generation", ("chat", "id")),
    "inline_query": ("inline query", ("from", "id")),
    "chosen_inline_result": ("chosen result", ("from", "id")),
    "callback_query": ("callback", ("from", "id")),
    "shipping_query": ("checkout", ("from", "id")),
    "pre_checkout_query": ("checkout", ("from", "id")),
    "purchased_paid_media": ("paid media", ("from", "id")),
    "subscription": ("subscription", ("user", "id")),
    "managed_bot": ("managed bot", ("user", "id")),
    "business_connection": ("business connection", ("user", "id")),
    "my_chat_member": ("my member", ("chat", "id")),
    "chat_member": ("member", ("from", "id")),
    "chat_join_request": ("member", ("from", "id")),
    "message_reaction": ("reaction", ("chat", "id")),
    "message_reaction_count": ("reaction count", ("chat", "id")),
    "chat_boost": ("boost", ("chat", "id")),
    "removed_chat_boost": ("boost", ("chat", "id")),
    "poll": ("poll", ("id",)),
    "poll_answer": ("poll", ("poll_id",)),
}

TYPES = tuple(_QUEUES)
ON_REQUEST = frozenset({"chat_member", "message_reaction", "message_reaction_count"})
DEFAULT_TYPES = frozenset(TYPES) - ON_REQUEST

_LIFETIMES: Mapping[str, float] = {
    "inline_query": 30.0,
    "callback_query": 150.0,
    "shipping_query": 150.0,
    "pre_checkout_query": 150.0,
    "chosen_inline_result": 600.0,
}

_SECRET = re.compile(r"[A-Za-z0-9_-]*")


class RefusalError(Exception):
    """The Bot API answers `ok: false` with this code and description, and these parameters."""

    def __init__(self, code: int, description: str, **parameters: int) -> None:
        super().__init__(f"{code} {description}")
        self.code = code
        self.description = description
        self.parameters = parameters


@dataclass(frozen=True, slots=True)
class Webhook:
    """A webhook as set; `allowed` is None for Telegram's default types."""

    url: str
    secret: str = ""
    max_connections: int = 40
    ip_address: str = ""
    certificate: str = ""

    @property
    def target(self) -> str:
        """The URL with its scheme, which may be left out for https."""
        return self.url if "://" in self.url else f"https://{self.url}"


def update_type(update: Mapping[str, Any]) -> str:
    """The one key beside update_id; a lone update_id is of type ""."""
    return next((key for key in update if key != "update_id"), "")


def queue_key(update: Mapping[str, Any]) -> QueueKey:
    """The serial queue an update waits in; one that names none has a queue to itself."""
    kind = update_type(update)
    space, path = _QUEUES.get(kind, ("alone", ("?",)))
    value: Any = update.get(kind)
    for name in path:
        value = value.get(name) if isinstance(value, Mapping) else None
    if value is None:
        return ("alone", update.get("update_id"))
    return (space, value)


def lifetime(kind: str) -> float:
    """Seconds after which Telegram drops an update of this type."""
    return _LIFETIMES.get(kind, DAY)


@dataclass(frozen=True, slots=True)
class Patience:
    """How often an update has failed, and the delay that its next failure starts from."""

    fails: int = 0
    delay: int = 1


def after_failure(
    patience: Patience, retry_after: int, random: Callable[[], float]
) -> tuple[float, Patience]:
    """Seconds until the next attempt: 0, 2, 4, 8, 16, 32, 60 to 64, then 60 to 120.

    A Retry-After above 0 is taken instead, up to an hour, and leaves the row where it was.
    """
    wanted = min(max(retry_after, 0), MAX_RETRY_AFTER)
    fails = patience.fails + 1
    if wanted or not patience.fails:
        return float(wanted), Patience(fails, patience.delay)
    delay = min(60 + int(random() * 61), patience.delay * 2)
    return float(delay), Patience(fails, delay)


def allowed_updates(value: object, before: frozenset[str] | None) -> frozenset[str] | None:
    """The types asked for, None being the default; absent or malformed leaves `before`."""
    if isinstance(value, str):
        value = _json(value)
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        return before
    names = frozenset(name.lower() for name in value) & frozenset(TYPES)
    return None if names in (frozenset(), DEFAULT_TYPES) else names


def permits(allowed: frozenset[str] | None, kind: str) -> bool:
    """Whether an update of this type is sent to the bot at all."""
    return kind not in ON_REQUEST if allowed is None else kind in allowed


def webhook(params: Mapping[str, Any], *, local: bool) -> Webhook:
    """The webhook that setWebhook's parameters ask for; RefusalError where Telegram refuses it.

    A `local` server takes plain http and any port.
    """
    url = str(params.get("url", ""))
    _check_url(url, local)
    secret = str(params.get("secret_token", ""))
    if len(secret) > 256:
        raise RefusalError(400, "Bad Request: secret token is too long")
    if not _SECRET.fullmatch(secret):
        raise RefusalError(400, "Bad Request: secret token contains unallowed characters")
    return Webhook(
        url,
        secret,
        _max_connections(params.get("max_connections")),
        str(params.get("ip_address", "")),
        str(params.get("certificate", "")),
    )


def truth(value: object) -> bool:
    """A boolean parameter, however it came."""
    return value is True or str(value).lower() in ("true", "yes", "1")


def executable(params: Mapping[str, Any]) -> bool:
    """Whether a webhook's answer with these parameters is carried out as a Bot API call."""
    method = str(params.get("method") or "").lower()
    barred = method in ("setwebhook", "deletewebhook", "close", "logout")
    return bool(method) and not barred and not method.startswith("get")


def _check_url(url: str, local: bool) -> None:
    try:
        parts = urlsplit(url if "://" in url else f"https://{url}")
        port = parts.port or (80 if parts.scheme == "http" else 443)
    except ValueError:
        raise RefusalError(400, "Bad Request: invalid webhook URL specified") from None
    if not parts.hostname or parts.scheme not in ("http", "https"):
        raise RefusalError(400, "Bad Request: invalid webhook URL specified")
    if local:
        return
    if parts.scheme == "http":
        raise _bad_webhook("An HTTPS URL must be provided for webhook")
    if port not in PORTS:
        raise _bad_webhook("Webhook can be set up only on ports 80, 88, 443 or 8443")
    if ":" in parts.hostname:
        raise _bad_webhook("IPv6-only addresses are not allowed")


def _bad_webhook(reason: str) -> RefusalError:
    return RefusalError(400, f"Bad Request: bad webhook: {reason}")


def _max_connections(value: object) -> int:
    try:
        wanted = int(str(value))
    except ValueError:
        return 40
    return min(max(wanted, 1), 100)


def _json(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return None
