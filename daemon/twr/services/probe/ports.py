"""What the probe is given, and what it needs of others."""

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from twr.core.drift import Limits, Wanted
from twr.core.findings import Finding
from twr.core.jobs import Stats
from twr.core.matching import Rule
from twr.core.webhook_info import Told
from twr.edges.notifiers import Heartbeat, Sink
from twr.services.probe.board import Traffic


@dataclass(frozen=True, slots=True)
class Settings:
    """What a reload may change; `interval`, `repeat` and `backlog` are seconds.

    `rules` are those of the configured routes; `listed` says that `wanted.allowed_updates` was
    given by hand.
    """

    wanted: Wanted
    rules: tuple[Rule, ...]
    listed: bool = False
    interval: float = 60.0
    limits: Limits = field(default_factory=Limits)
    repeat: float = 4 * 3600.0
    backlog: float = 300.0


class Me(Protocol):
    """The answer of getMe."""

    @property
    def username(self) -> str | None: ...


class Bot(Protocol):
    """The part of the Bot API client that the probe needs; raises TelegramError."""

    async def get_me(self) -> Me: ...
    async def get_webhook_info(self) -> Told: ...


class Store(Protocol):
    """The part of the store that the probe needs; raises StoreError."""

    async def stats(self) -> Stats: ...
    async def load_alerts(self) -> dict[str, str]: ...
    async def save_alerts(self, changed: Mapping[str, str | None]) -> None: ...
    async def claim_probe(self, ttl: float) -> bool: ...
    async def silences(self, instances: Sequence[str]) -> Mapping[str, float | None]: ...


class Metrics(Protocol):
    """Where the numbers go; times are unix seconds, None is unknown."""

    def webhook(
        self, matches: bool | None, pending: int | None, last_error_ts: int | None
    ) -> None: ...
    def probe_success(self, timestamp: float | None) -> None: ...
    def alerts_firing(self, names: Collection[str]) -> None: ...


@dataclass(frozen=True, slots=True)
class Inputs:
    """What is watched. The callables are asked anew each time, so that a reload takes effect.

    `bot` gives None where there is no token. `traffic` gives totals since the process started,
    `local` what is wrong with this process now: `route_down` (subject: the route), `store_down`,
    `config_invalid`.
    """

    settings: Callable[[], Settings]
    bot: Callable[[], Bot | None]
    traffic: Callable[[], Traffic]
    local: Callable[[], Iterable[Finding]]
    store: Store


@dataclass(frozen=True, slots=True)
class Outputs:
    """Where it is told, besides the log.

    `learned` takes the bot's username when getMe has told it, None: it need not be asked.
    `recall` is asked every moment, to look for a username that another instance has learned;
    both raise StoreError.
    `mask` takes the secrets out of a text.
    """

    sinks: Callable[[], Sequence[Sink]]
    heartbeat: Callable[[], Heartbeat | None]
    metrics: Metrics
    mask: Callable[[str], str]
    learned: Callable[[str], Awaitable[None]] | None = None
    recall: Callable[[], Awaitable[None]] | None = None
