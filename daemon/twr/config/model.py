"""What the rest of twr sees of a configuration: plain values, all defaults filled in.

Durations are seconds, sizes are bytes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import IPv4Network, IPv6Network
from pathlib import Path
from typing import Literal

from twr.config.document import Place
from twr.config.secrets import BOT_KEYS, STORE_KEYS, Reference, Secrets, resolve
from twr.config.urls import passwords, without_passwords
from twr.core.backoff import Backoff
from twr.core.breaker import BreakerPolicy
from twr.core.matching import Rule, wanted_types
from twr.errors import Problem

Network = IPv4Network | IPv6Network


@dataclass(frozen=True, slots=True)
class Listen:
    """Where a listener binds: `host` and `port`, or `path`, a unix socket."""

    host: str | None = None
    port: int | None = None
    path: str | None = None

    def __str__(self) -> str:
        """As it is written in the file."""
        if self.path is not None:
            return f"unix:{self.path}"
        host = f"[{self.host}]" if self.host and ":" in self.host else self.host
        return f"{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Bot:
    """The bot and its public webhook. `username` has no @ in front, `api_url` no / behind."""

    name: str
    username: str | None
    api_url: str
    webhook_url: str | None
    allowed_updates: Literal["auto"] | tuple[str, ...]
    max_connections: int


@dataclass(frozen=True, slots=True)
class StoreConfig:
    """The store: a Redis at `url` (or at what `url_from` names), else the embedded Valkey.

    `url` may hold a password: connect to `Secrets.store_url`, show `str()` of this.
    """

    url: str | None = field(repr=False)
    url_from: str | None
    dir: Path
    max_memory: int
    prefix: str
    dedup_ttl: float

    @property
    def embedded(self) -> bool:
        """Whether twr runs the server itself."""
        return self.url is None and self.url_from is None

    def __str__(self) -> str:
        """For people: the URL without user and password, `$VARIABLE`, or the directory."""
        if self.url is not None:
            return without_passwords(self.url)
        return self.url_from or f"embedded in {self.dir}"


@dataclass(frozen=True, slots=True)
class DeadLetters:
    """What is kept of dead letters; the oldest go first."""

    max_age: float
    max_count: int


@dataclass(frozen=True, slots=True)
class Probe:
    """How often the webhook is looked at, and how patient its alerts are, in probes."""

    interval: float
    pending: int
    fire_after: int
    resolve_after: int


@dataclass(frozen=True, slots=True)
class TelegramSink:
    """The chat that alerts go to."""

    chat_id: int | str
    message_thread_id: int | None


@dataclass(frozen=True, slots=True)
class Alerts:
    """How alerts repeat and where they go; URLs and headers of sinks are in `Secrets`."""

    repeat: float
    backlog: float
    telegram: TelegramSink | None
    webhook: bool
    heartbeat: bool


@dataclass(frozen=True, slots=True)
class Route:
    """One service: what it takes (`rule`) and how it is delivered to, complete in itself.

    `target_url` may hold a password: show `target`.
    """

    name: str
    target_url: str = field(repr=False)
    rule: Rule
    timeout: float
    concurrency: int
    order: Literal["chat", "none"]
    max_attempts: int
    backoff: Backoff
    permanent_statuses: frozenset[int]
    max_pending: int
    breaker: BreakerPolicy

    @property
    def target(self) -> str:
        """The target's URL for people: without user and password."""
        return without_passwords(self.target_url)


@dataclass(frozen=True, slots=True)
class Config:
    """A configuration file, valid and complete. Its secrets are resolved apart. `content` is the
    bytes it was read from, `place` where in it what stands."""

    file: Path
    bot: Bot
    listen: Listen
    path: str
    max_body: int
    trusted_networks: tuple[Network, ...] | None
    trusted_proxies: tuple[Network | Literal["unix"], ...]
    admin: Listen
    socket_mode: int
    socket_group: str | None
    store: StoreConfig
    instance: str
    shutdown_grace: float
    dead_letters: DeadLetters
    probe: Probe
    alerts: Alerts
    routes: tuple[Route, ...]
    warnings: tuple[Problem, ...] = field(default=(), compare=False)
    references: tuple[Reference, ...] = field(default=(), repr=False)
    content: bytes = field(default=b"", repr=False, compare=False)
    place: Place = field(default_factory=lambda: Place(0), repr=False, compare=False)

    def problem(self, path: Sequence[str], message: str) -> Problem:
        """What is wrong with the setting at `path`, or with its absence."""
        return Problem(str(self.file), self.place.at(path).line, f"{'.'.join(path)}: {message}")

    @property
    def rules(self) -> tuple[Rule, ...]:
        """The rules of all routes, in the order of the file."""
        return tuple(route.rule for route in self.routes)

    @property
    def allowed_updates(self) -> tuple[str, ...]:
        """What Telegram is to send: as listed, or what the routes need; empty is its default."""
        listed = self.bot.allowed_updates
        return wanted_types(self.rules) if listed == "auto" else listed

    def secrets(self, environ: Mapping[str, str]) -> Secrets:
        """Every secret the file names: from `environ`, or from files read now.

        Raises ConfigError with each one that is missing, empty or of the wrong form.
        """
        return resolve(self.references, environ, also=self._passwords())

    def bot_secrets(self, environ: Mapping[str, str]) -> Secrets:
        """As `secrets`, but only what talking to Telegram needs: token, webhook secret, proxy."""
        return resolve(self.references, environ, keys=BOT_KEYS)

    def store_url(self, environ: Mapping[str, str]) -> str | None:
        """Where the Redis is, or None for the embedded store. Raises ConfigError."""
        return resolve(self.references, environ, keys=STORE_KEYS).store_url

    def _passwords(self) -> tuple[str, ...]:
        return tuple(part for route in self.routes for part in passwords(route.target_url))


def unchangeable_differences(old: Config, new: Config) -> tuple[str, ...]:
    """The settings that differ and that a running process cannot take over, by their names."""
    pairs = {
        "listen": (old.listen, new.listen),
        "socket_mode": (old.socket_mode, new.socket_mode),
        "socket_group": (old.socket_group, new.socket_group),
        "admin": (old.admin, new.admin),
        "store": (old.store, new.store),
        "bot.name": (old.bot.name, new.bot.name),
        "instance": (old.instance, new.instance),
    }
    return tuple(name for name, (before, after) in pairs.items() if before != after)
