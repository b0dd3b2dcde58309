"""The bot's username, which one instance learns for all."""

import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import anyio
import pytest

from leaks import leaks
from twr.config import load
from twr.core.clock import Clock
from twr.core.jobs import Stats
from twr.double import TelegramDouble
from twr.edges.metrics import Metrics
from twr.edges.notifiers import WebhookSink
from twr.edges.store import Store
from twr.errors import ConfigError, StoreUnavailable
from twr.services.probe import Board, watch
from twr.supervisor.current import Current, derive
from twr.supervisor.process import Process
from twr.supervisor.status import Status
from twr.supervisor.watching import Watching
from until import until

pytestmark = pytest.mark.anyio

CLOCK = Clock(time.time, time.monotonic)


@dataclass
class Names:
    """A store that holds the username alone; it may refuse to."""

    name: str | None = None
    full: bool = False
    refused: int = 0
    prober: bool = True

    async def load_username(self) -> str | None:
        """The name."""
        return self.name

    async def save_username(self, name: str) -> None:
        """Keep it, or not."""
        if self.full:
            self.refused += 1
            raise StoreUnavailable("the store is full")
        self.name = name

    async def claim_probe(self, ttl: float) -> bool:
        """Whether this instance probes."""
        return self.prober

    async def stats(self) -> Stats:
        """Nothing waits."""
        return Stats(1000, (), {})

    async def load_alerts(self) -> dict[str, str]:
        """Nothing fires."""
        return {}

    async def save_alerts(self, changed: Mapping[str, str | None]) -> None:
        """Forget it."""


@dataclass(frozen=True)
class Given:
    """The surroundings."""

    clock: Clock = CLOCK
    random: Callable[[], float] = lambda: 0.5


@asynccontextmanager
async def watched(current: Current, names: Names) -> AsyncIterator[tuple[Process, Board]]:
    """A process that watches, and knows no name at first."""
    process = Process(CLOCK, Metrics("1"), cast("Store", names), None)
    stop = anyio.Event()
    async with (
        Watching(process, lambda: current, Given(), "vps-1") as watching,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(watching.run, stop)
        yield process, watching.board
        stop.set()


@pytest.fixture
async def double() -> AsyncIterator[TelegramDouble]:
    """A Bot API server."""
    async with TelegramDouble() as it:
        yield it


@pytest.fixture
def current(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, double: TelegramDouble) -> Current:
    """A configuration with a token, and a Bot API that knows it."""
    monkeypatch.setattr(watch, "CLAIM_EVERY", 0.02)
    text = f"bot: {{api_url: '{double.api_url}'}}\n"
    route = "routes: [{name: a, target_url: 'http://127.0.0.1:1/', secret_token_env: T}]\n"
    environ = {
        "T": "own_token",
        "TELEGRAM_WEBHOOK_SECRET": "hook_secret",
        "BOT_TOKEN": double.token,
    }
    file = tmp_path / "twr.yaml"
    file.write_text(text + route)
    config = load(file, environ)
    known = derive(config, config.secrets(environ))
    return replace(known, probe=replace(known.probe, interval=0.02))


@pytest.mark.parametrize("length", [60, 2047, 2060, 2090])
async def test_a_token_in_the_url_that_telegram_tells_is_shown_nowhere(
    current: Current, double: TelegramDouble, caplog: pytest.LogCaptureFixture, length: int
) -> None:
    """Neither whole nor a part, wherever a long URL is cut."""
    start = "http://127.0.0.1:9/"
    double.set_webhook(f"{start}{'.' * (length - len(start) - len(double.token))}{double.token}...")
    drifted = replace(current.probe, wanted=replace(current.probe.wanted, url="https://x.example/"))
    names = Names()
    async with watched(replace(current, probe=drifted), names) as (process, board):
        await until(lambda: "ALERT firing webhook_url_drift" in caplog.text)
        status = await Status(process, board, "1", "vps-1", current.mask).json()
    assert status["webhook"]["url"].startswith(start)
    assert leaks(f"{status}\n{caplog.text}", [double.token]) == []


async def test_a_name_that_the_store_refused_is_learned_again(current: Current) -> None:
    """Until it is kept: other instances and the next start have it only from there."""
    names = Names(full=True)
    async with watched(current, names) as (process, _):
        await until(lambda: names.refused >= 2)
        unkept = process.username
        names.full = False
        await until(lambda: process.username is not None)
    assert (unkept, names.name, process.username) == (None, "double_bot", "double_bot")


async def test_an_instance_that_does_not_ask_takes_the_name_from_the_store(
    current: Current,
) -> None:
    """A command to another bot is nobody's on each instance, not just on the one that asked."""
    names = Names(prober=False)
    async with watched(current, names) as (process, _):
        names.name = "shop_bot"
        await until(lambda: process.username == "shop_bot")


async def test_a_way_that_is_not_to_be_had_leaves_those_in_use(current: Current) -> None:
    """The bot answers as before, and the same way is tried again at the next reload."""
    process = Process(CLOCK, Metrics("1"), cast("Store", Names()), None)
    broken = replace(current, secrets=replace(current.secrets, proxy="nonsense"))
    async with Watching(process, lambda: current, Given(), "vps-1") as watching:
        for _ in range(2):
            with pytest.raises(ConfigError):
                await watching.prepare(broken)
        bot = (await watching.prepare(current)).bot
        assert bot is not None
        assert (await bot.get_me()).username == "double_bot"


async def test_messages_bear_the_names_that_the_process_runs_under(current: Current) -> None:
    """A reload cannot change them, so it does not change what the messages say."""
    secrets = replace(current.secrets, alert_webhook_url="http://127.0.0.1:1/")
    config = current.config
    renamed = replace(config, instance="vps-2", bot=replace(config.bot, name="shop"))
    process = Process(CLOCK, Metrics("1"), cast("Store", Names()), None)
    async with Watching(process, lambda: current, Given(), "vps-1") as watching:
        before = await watching.prepare(replace(current, secrets=secrets))
        after = await watching.prepare(replace(current, secrets=secrets, config=renamed))
    assert after.sinks == before.sinks
    assert [sink.sender for sink in after.sinks if isinstance(sink, WebhookSink)] == ["main@vps-1"]
