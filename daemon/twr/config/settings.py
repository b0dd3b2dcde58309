"""The shape of the file: every key, its default with its unit, and what it is for."""

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from twr.config import values
from twr.config.model import Listen
from twr.config.urls import public_url, store_url, web_url
from twr.config.values import (
    NAME,
    NAME_WORDS,
    UPDATE_TYPE,
    Read,
    lasting,
    number,
    one_of,
    sized,
    text,
    whole,
)
from twr.core.update import TYPES

CHAT_TYPES = ("private", "group", "supergroup", "channel")
DEFAULT_API_URL = "https://api.telegram.org"
_LARGEST_ID = 2**52


def _one_or_two(item: dict[str, Any]) -> dict[str, Any]:
    return {"anyOf": [item, {"type": "array", "items": item, "minItems": 1, "maxItems": 2}]}


def _known_type() -> dict[str, Any]:
    """Editors offer the types known today and take others."""
    return {"anyOf": [{"enum": list(TYPES)}, {"type": "string", "pattern": f"^{UPDATE_TYPE}$"}]}


_Name = Annotated[str, text(NAME, NAME_WORDS)]
_Type = Annotated[str, Read(values.update_type, _known_type())]
_VARIABLE = {"type": "string", "pattern": "^[A-Za-z_][A-Za-z0-9_]*$"}
_Variable = Annotated[tuple[str, ...], Read(values.variables, _VARIABLE)]
_Path = Annotated[tuple[str, ...], Read(values.paths, {"type": "string"})]
_Variables = Annotated[
    tuple[str, ...], Read(values.one_or_two(values.variables), _one_or_two(_VARIABLE))
]
_Paths = Annotated[
    tuple[str, ...], Read(values.one_or_two(values.paths), _one_or_two({"type": "string"}))
]
_Listen = Annotated[
    Listen,
    Read(values.listen, {"type": "string", "examples": ["127.0.0.1:8080", "unix:/run/twr/x.sock"]}),
]
_User = Annotated[int, values.identifier(-_LARGEST_ID, "user")]
_Chat = Annotated[int, values.identifier(-_LARGEST_ID, "chat")]
_Topic = Annotated[int, values.identifier(1, "topic")]
_ChatType = Annotated[str, one_of(CHAT_TYPES)]
_Command = Annotated[str, Read(values.command, {"type": "string"})]
_Prefix = Annotated[str, Read(values.prefix, {"type": "string", "minLength": 1})]
_Status = Annotated[int, whole(300, 599)]
_Username = Annotated[
    str, text(r"@?[A-Za-z0-9_]{1,64}", "the bot's username", lambda name: name.removeprefix("@"))
]
_Network = Annotated[Any, Read(values.networks, {"type": "string"})]
_Proxy = Annotated[Any, Read(values.proxies, {"type": "string"})]
_AllowedUpdates = Annotated[
    str | tuple[str, ...],
    Read(
        values.allowed_updates,
        {"anyOf": [{"const": "auto"}, {"type": "array", "items": _known_type(), "minItems": 1}]},
    ),
]
_Recipient = Annotated[
    int | str,
    Read(
        values.recipient,
        {"anyOf": [{"type": "integer"}, {"type": "string", "pattern": "^@"}]},
    ),
]
_Directory = Annotated[str, text(r"[^\x00-\x1f]+", "the path of a directory")]
_StorePrefix = Annotated[str, text(r"[A-Za-z0-9_.:-]{1,64}", "1 to 64 of A-Z a-z 0-9 _ . : -")]
_DedupTtl = Annotated[float, lasting("24h", because=" (so long Telegram repeats an update)")]
_UrlPath = Annotated[
    str, text(r"/[A-Za-z0-9._~!$&'()*+,;=:@/-]*", "a path that begins with /, without ? # or %")
]
_MaxBody = Annotated[
    int, sized("576KiB", " (Telegram's largest update is 512KiB; that needs headroom)")
]
_Mode = Annotated[
    int, Read(values.mode, {"type": ["string", "integer"], "pattern": "^0?[0-7]{3}$"})
]
_Group = Annotated[str, text(r"[A-Za-z_][A-Za-z0-9_.-]{0,31}", "the name of a group")]
_WebUrl = Annotated[str, values.url(web_url, "http://shop-service:8080/telegram/updates")]
_PublicUrl = Annotated[str, values.url(public_url, "https://bot.example/webhooks/telegram")]
_Filled = BeforeValidator(values.filled)
_Listed = BeforeValidator(values.listed)


def _key(default: Any, description: str, **more: Any) -> Any:
    """A key that may be left out; a default in text is read as the file's own is."""
    return Field(
        default, description=description, validate_default=isinstance(default, str), **more
    )


def _condition(description: str) -> Any:
    return _key(None, description, json_schema_extra={"minItems": 1})


class Section(BaseModel):
    """A mapping of the file. One without anything in it has all its defaults."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _empty_is_default(cls, data: Any) -> Any:
        return {} if data is None else data


class BotSettings(Section):
    """The bot and its public webhook."""

    name: _Name = _key(
        "main", "Names the bot's keys in the store, and the bot in the metric twr_bot_info"
    )
    token_env: _Variable | None = _key(
        None,
        "Variable with the bot token, default BOT_TOKEN; without it no probe, no webhook commands",
    )
    token_file: _Path | None = _key(None, "File with the bot token")
    secret_token_env: _Variables | None = _key(
        None,
        "Variable with the webhook's secret token, default TELEGRAM_WEBHOOK_SECRET;"
        " two, the newest first, while it is rotated",
    )
    secret_token_file: _Paths | None = _key(None, "File with the webhook's secret token")
    webhook_url: _PublicUrl | None = _key(
        None, "The URL that Telegram calls; the probe compares with it, `twr webhook set` sets it"
    )
    username: _Username | None = _key(
        None, "The bot's username; asked of Telegram when there is a token"
    )
    api_url: Annotated[str, values.url(public_url, "http://127.0.0.1:8081")] = _key(
        DEFAULT_API_URL, "The Bot API server"
    )
    proxy_env: _Variable | None = _key(
        None, "Variable with the URL of an http or socks proxy, for the Bot API alone"
    )
    proxy_file: _Path | None = _key(None, "File with the URL of the proxy")
    allowed_updates: _AllowedUpdates = _key(
        "auto", "The update types asked for: auto (what the routes need), or a list"
    )
    max_connections: Annotated[int, whole(1, 100)] = _key(
        40, "How many connections Telegram may open at once"
    )


class StoreSettings(Section):
    """Where updates wait: a Redis or Valkey of your own, or the embedded one."""

    url: Annotated[str, values.url(store_url, "redis://127.0.0.1:6379/0")] | None = _key(
        None, "redis://, rediss://, unix:// or redis+sentinel://; without it the embedded Valkey"
    )
    url_env: _Variable | None = _key(None, "Variable with the URL, for one with a password")
    url_file: _Path | None = _key(None, "File with the URL")
    dir: _Directory | None = _key(
        None,
        "Data of the embedded store; default $STATE_DIRECTORY, else /var/lib/twr where it exists,"
        " else ~/.local/state/twr",
    )
    max_memory: Annotated[int, sized("1MiB")] = _key(
        "256MiB", "Embedded: above it the ingress answers 503, all else goes on"
    )
    prefix: _StorePrefix = _key("twr", "Begins all keys")
    dedup_ttl: _DedupTtl = _key("25h", "How long an update id is remembered")


class BackoffSettings(Section):
    """Delays between attempts."""

    first: Annotated[float, lasting("1ms", "24h")] = _key("1s", "Before the second attempt")
    factor: Annotated[float, number(1, 100)] = _key(2, "By which each delay grows")
    max: Annotated[float, lasting("1ms", "24h")] = _key("10m", "The longest delay")
    jitter: Annotated[float, number(0, 1)] = _key(0.2, "0.2 spreads a delay by 20 % either way")


class BreakerSettings(Section):
    """When a route pauses because its target is away."""

    failures: Annotated[int, whole(1, 1_000_000)] = _key(5, "Signs in a row that open the breaker")
    cooldown: Annotated[float, lasting("1ms", "24h")] = _key("5s", "The first pause; it doubles")
    max_cooldown: Annotated[float, lasting("1ms", "24h")] = _key("1m", "The longest pause")


class DeliverySettings(Section):
    """How updates are delivered; each key can be set on a route too."""

    timeout: Annotated[float, lasting("1ms", "1h")] = _key("10s", "One POST, answer included")
    concurrency: Annotated[int, whole(1, 10_000)] = _key(32, "Deliveries of a route at once")
    order: Annotated[str, one_of(("chat", "none"))] = _key(
        "chat", "chat: one delivery of a chat after the other; none: as fast as they come"
    )
    max_attempts: Annotated[int, whole(1, 1_000_000)] = _key(
        10, "Failed attempts that make a dead letter"
    )
    backoff: BackoffSettings = _key(BackoffSettings(), "Delays between attempts")
    permanent_statuses: Annotated[tuple[_Status, ...], _Listed] = _key(
        (400, 410, 413, 415, 422), "Answers that make a dead letter at once"
    )
    max_pending: Annotated[int, whole(1, 100_000_000)] = _key(
        100_000, "With that many waiting a new delivery is a dead letter at once"
    )
    breaker: BreakerSettings = _key(BreakerSettings(), "When a route pauses")


class MatchSettings(Section):
    """Conditions joined by AND; the values of one by OR."""

    update_types: Annotated[tuple[_Type, ...] | None, _Filled] = _condition("message, …")
    user_ids: Annotated[tuple[_User, ...] | None, _Filled] = _condition(
        "Who acts; for a callback whoever pressed the button"
    )
    chat_ids: Annotated[tuple[_Chat, ...] | None, _Filled] = _condition(
        "Groups and channels have negative ids"
    )
    chat_types: Annotated[tuple[_ChatType, ...] | None, _Filled] = _condition(
        "private, group, supergroup, channel"
    )
    topic_ids: Annotated[tuple[_Topic, ...] | None, _Filled] = _condition(
        "Topics of a forum; the General topic has no id"
    )
    commands: Annotated[tuple[_Command, ...] | None, _Filled] = _condition(
        "With or without the slash; /start is not /started"
    )
    start_prefixes: Annotated[tuple[_Prefix, ...] | None, _Filled] = _condition(
        "How the payload of `/start payload` begins"
    )
    callback_prefixes: Annotated[tuple[_Prefix, ...] | None, _Filled] = _condition(
        "How the data of a callback begins"
    )


class RouteSettings(DeliverySettings):
    """One service, and what it takes."""

    name: _Name = Field(description=f"Unique: {NAME_WORDS}")
    target_url: _WebUrl = Field(description="Where updates are POSTed")
    signing_secret_env: _Variables | None = _key(
        None, "Variable with the secret that signs; two, the newest first, while it is rotated"
    )
    signing_secret_file: _Paths | None = _key(None, "File with the secret that signs")
    secret_token_env: _Variable | None = _key(
        None, "Variable with what is sent as X-Telegram-Bot-Api-Secret-Token, for bot frameworks"
    )
    secret_token_file: _Path | None = _key(None, "File with that token")
    match: MatchSettings = _key(MatchSettings(), "What the route takes; left out: everything")
    except_: MatchSettings | None = _key(None, "What it does not take", alias="except")
    fallback: Annotated[bool, Read(values.flag, {"type": "boolean"})] = _key(
        False, "Take only what no other route took"
    )


class DeadLetterSettings(Section):
    """What is kept of dead letters; the oldest go first."""

    max_age: Annotated[float, lasting("1s")] = _key("30d", "How long a dead letter is kept")
    max_count: Annotated[int, whole(1, 100_000_000)] = _key(100_000, "How many are kept")


class ProbeSettings(Section):
    """The look at what Telegram thinks of the webhook."""

    interval: Annotated[float, lasting("10ms", "24h")] = _key(
        "60s", "From one look to the next; 5s at most while Telegram has another URL"
    )
    pending: Annotated[int, whole(0, 1_000_000)] = _key(10, "Pending updates that are too many")
    fire_after: Annotated[int, whole(1, 1000)] = _key(2, "Probes in a row before an alert")
    resolve_after: Annotated[int, whole(1, 1000)] = _key(1, "Probes in a row before it resolves")


class TelegramSinkSettings(Section):
    """A chat that gets the alerts, from the same bot."""

    chat_id: _Recipient = Field(description="The chat's id, or the @name of a public one")
    message_thread_id: _Topic | None = _key(None, "The topic in it")


class WebhookSinkSettings(Section):
    """A URL that gets the alerts as JSON."""

    url: _WebUrl | None = _key(None, "POSTed to")
    url_env: _Variable | None = _key(None, "Variable with the URL, where it is a secret")
    url_file: _Path | None = _key(None, "File with the URL")
    headers_env: _Variable | None = _key(None, "Variable with more headers, as a JSON object")
    headers_file: _Path | None = _key(None, "File with more headers, as a JSON object")


class AlertSettings(Section):
    """Where alerts go besides the log."""

    repeat: Annotated[float, lasting("1s")] = _key("4h", "A firing alert is repeated so often")
    backlog: Annotated[float, lasting("10ms")] = _key(
        "5m", "Age of a route's oldest waiting update that is too old"
    )
    telegram: TelegramSinkSettings | None = _key(None, "A chat, by the same bot")
    webhook: WebhookSinkSettings | None = _key(None, "A URL, by POST")
    heartbeat_url_env: _Variable | None = _key(
        None, "Variable with a URL that is asked for after each healthy cycle"
    )
    heartbeat_url_file: _Path | None = _key(None, "File with that URL")


class FileSettings(Section):
    """Configuration of twr, the Telegram webhook router."""

    bot: BotSettings = _key(BotSettings(), "The bot and its public webhook")
    listen: _Listen = _key("127.0.0.1:8080", "Where webhooks come in: host:port or unix:/path")
    path: _UrlPath = _key("/webhooks/telegram", "The path of the webhook")
    max_body: _MaxBody = _key("1MiB", "The largest body taken")
    trusted_networks: Annotated[tuple[_Network, ...] | None, _Listed] = _key(
        None, "Clients let in: networks, telegram, loopback; left out: everyone"
    )
    trusted_proxies: Annotated[tuple[_Proxy, ...], _Listed] = _key(
        (), "Peers whose last X-Forwarded-For hop is the client: networks, loopback, unix"
    )
    admin: _Listen = _key("127.0.0.1:8081", "Health, metrics and status: host:port or unix:/path")
    socket_mode: _Mode = _key("0660", "Permissions of `listen` where it is a unix socket")
    socket_group: _Group | None = _key(
        None, "Group of `listen` where it is a unix socket, such as www-data"
    )
    store: StoreSettings = _key(StoreSettings(), "Where updates wait")
    instance: _Name | None = _key(
        None, "The name under which work is claimed; default the host name"
    )
    delivery: DeliverySettings = _key(DeliverySettings(), "Defaults for every route")
    shutdown_grace: Annotated[float, lasting("0s", "1h")] = _key(
        "20s", "How long a stop waits for deliveries in flight"
    )
    dead_letters: DeadLetterSettings = _key(DeadLetterSettings(), "What is kept of dead letters")
    probe: ProbeSettings = _key(ProbeSettings(), "The look at what Telegram thinks")
    alerts: AlertSettings = _key(AlertSettings(), "Where alerts go besides the log")
    routes: Annotated[tuple[RouteSettings, ...], BeforeValidator(values.routes)] = Field(
        description="The services, in the order in which they are shown",
        json_schema_extra={"minItems": 1},
    )
