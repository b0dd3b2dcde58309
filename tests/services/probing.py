"""A probe and all that is around it, to be changed while it runs."""

import contextlib
import time
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

import anyio
import pytest

from twr.core.alerting import Notice
from twr.core.clock import Clock
from twr.core.drift import Limits, Wanted
from twr.core.findings import Finding
from twr.core.jobs import Stats
from twr.core.matching import Match, Rule
from twr.double import TelegramDouble
from twr.edges.notifiers import Failure, Heartbeat, Sink
from twr.edges.telegram import Telegram
from twr.errors import StoreUnavailable
from twr.services import probe
from twr.services.probe import Board, Inputs, Outputs, Settings, Traffic
from until import until

CLOCK = Clock(time.time, time.monotonic)
URL = "http://127.0.0.1:9/webhooks/telegram"
OLD = "http://127.0.0.1:9/old"
SHOP = Rule("shop", Match())
GOOD = '{"since": 5, "told_at": 6, "detail": {}}'
SETTINGS = Settings(
    Wanted(URL, 40, None), (SHOP,), interval=0.05, limits=Limits(pending=10, fire_after=2)
)


@dataclass
class Shelf:
    """What a store holds of the alerts, in memory; it may be down, and it may hang."""

    texts: dict[str, str] = field(default_factory=dict)
    holder: object = None
    down: bool = False
    hangs: bool = False
    found: Stats = field(default_factory=lambda: Stats(1000, (), {}))
    saves: int = 0
    silences: dict[str, float | None] = field(default_factory=dict)

    async def ready(self) -> None:
        """Answer, or not."""
        if self.hangs:
            await anyio.sleep_forever()
        if self.down:
            raise StoreUnavailable("the store is not available")


@dataclass
class Instance:
    """One process's view of the shelf."""

    shelf: Shelf
    name: str = "vps-1"

    async def stats(self) -> Stats:
        """What waits."""
        await self.shelf.ready()
        return self.shelf.found

    async def load_alerts(self) -> dict[str, str]:
        """What is stored."""
        await self.shelf.ready()
        return dict(self.shelf.texts)

    async def save_alerts(self, changed: Mapping[str, str | None]) -> None:
        """Store it."""
        await self.shelf.ready()
        self.shelf.saves += 1
        for name, text in changed.items():
            if text is None:
                self.shelf.texts.pop(name, None)
            else:
                self.shelf.texts[name] = text

    async def silences(self, instances: Sequence[str]) -> Mapping[str, float | None]:
        """For how long each has been silent; those that nothing is said of beat."""
        await self.shelf.ready()
        return {name: self.shelf.silences.get(name, 0.0) for name in instances}

    async def claim_probe(self, ttl: float) -> bool:
        """Whoever asks first has it, until the holder is taken away."""
        await self.shelf.ready()
        if self.shelf.holder is None:
            self.shelf.holder = self.name
        held = self.shelf.holder == self.name
        if held and ttl < 0.01:
            self.shelf.holder = None
        return held


@dataclass
class Numbers:
    """What the metrics were told."""

    seen: list[tuple[bool | None, int | None, float | None]] = field(default_factory=list)
    succeeded: list[float | None] = field(default_factory=list)
    firing: frozenset[str] = frozenset()
    evaluations: int = 0

    def webhook(
        self, matches: bool | None, pending: int | None, last_error_ts: float | None
    ) -> None:
        """A look was answered."""
        self.seen.append((matches, pending, last_error_ts))

    def probe_success(self, timestamp: float | None) -> None:
        """At this time."""
        self.succeeded.append(timestamp)

    def alerts_firing(self, names: Collection[str]) -> None:
        """These fire now."""
        self.firing = frozenset(names)
        self.evaluations += 1


@dataclass(eq=False)
class Notes:
    """A sink that keeps what it is told."""

    name: str = "notes"
    told: list[Notice] = field(default_factory=list)
    hangs: bool = False

    async def send(self, notice: Notice) -> Failure | None:
        """Keep it."""
        if self.hangs:
            await anyio.sleep_forever()
        self.told.append(notice)
        return None

    @property
    def kinds(self) -> list[tuple[str, str]]:
        """Kind and alert of each notice."""
        return [(it.kind, it.alert) for it in self.told]


class World:
    """A probe and all that is around it, to be changed while it runs."""

    def __init__(self, bot: Telegram | None, shelf: Shelf | None = None) -> None:
        self.bot = bot
        self.shelf = shelf or Shelf()
        self.settings = SETTINGS
        self.traffic = Traffic()
        self.local: list[Finding] = []
        self.notes = Notes()
        self.sinks: list[Sink] = [self.notes]
        self.heartbeat: Heartbeat | None = None
        self.numbers = Numbers()
        self.secret = "no-secret-at-all"
        self.learnt: list[str] = []
        self.instance = "vps-1"
        self.board = Board(self.instance)

    async def learned(self, username: str) -> None:
        """Note the name."""
        self.learnt.append(username)

    def named(self, instance: str) -> "World":
        """This world as another instance."""
        self.instance = instance
        self.board = Board(instance)
        return self

    @contextlib.asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        """With the probe running."""
        inputs = Inputs(
            lambda: self.settings,
            lambda: self.bot,
            lambda: self.traffic,
            lambda: self.local,
            Instance(self.shelf, self.instance),
        )
        outputs = Outputs(
            lambda: self.sinks,
            lambda: self.heartbeat,
            self.numbers,
            lambda text: text.replace(self.secret, "***"),
            self.learned,
        )
        stop = anyio.Event()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(probe.run, inputs, outputs, self.board, CLOCK, half, stop)
            yield
            stop.set()

    async def until(self, condition: Callable[[], bool], seconds: float = 5.0) -> None:
        """Wait until `condition` holds."""
        await until(condition, seconds)

    async def evaluated(self, times: int = 3) -> None:
        """Wait until all has been looked at so often again."""
        seen = self.numbers.evaluations
        await until(lambda: self.numbers.evaluations >= seen + times)

    async def until_told(self, *kinds: tuple[str, str], seconds: float = 5.0) -> None:
        """Wait until just these were told, in any order."""
        await until(lambda: sorted(self.notes.kinds) == sorted(kinds), seconds)


def half() -> float:
    """No luck at all."""
    return 0.5


def lines(caplog: pytest.LogCaptureFixture, logger: str = "twr.alerts") -> list[str]:
    """What was logged."""
    return [it.getMessage() for it in caplog.records if it.name == logger]


def looks(double: TelegramDouble) -> int:
    """How often Telegram was asked."""
    return sum(method.lower() == "getwebhookinfo" for method, _ in double.calls)
