"""A daemon that watches a Telegram double, and everything that it tells its three sinks."""

import json
import struct
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from system.harness import ROOT, SECRET, Daemon, route
from targets import Target
from twr.double import TOKEN, TelegramDouble
from until import until

PUBLIC = "bot.example"
URL = f"https://{PUBLIC}/hook"
HIDDEN = ("sink-secret-1", "sink-secret-2", "heartbeat-secret", TOKEN, TOKEN.partition(":")[2])

Told = list[tuple[str, str]]
"""What was told in order: `firing`, `repeat` or `resolved`, and the alert."""


class Stamped(list[Any]):
    """A list that notes when each item came, in monotonic seconds."""

    def __init__(self) -> None:
        super().__init__()
        self.times: list[float] = []

    def append(self, item: Any) -> None:
        self.times.append(time.monotonic())
        super().append(item)


@dataclass
class Watched:
    """Telegram, the daemon, one service, and where alerts and heartbeats go."""

    double: TelegramDouble
    daemon: Daemon
    service: Target
    sink: Target
    heartbeat: Target
    shift: Path

    def register(self, url: str = URL, **params: Any) -> None:
        """Let Telegram hold this webhook."""
        self.double.set_webhook(url, **{"secret_token": SECRET, **params})

    def forward(self, seconds: float) -> None:
        """Put the daemon's clocks forward."""
        with self.shift.open("r+b") as file:
            file.write(struct.pack("d", seconds))

    async def looks(self, count: int = 1) -> None:
        """Wait for so many more looks at the webhook to have begun, and the last but one ended."""
        before = self.asked
        await until(lambda: self.asked > before + count, 30, f"{count} looks")

    @property
    def asked(self) -> int:
        """How often Telegram was asked about the webhook."""
        return sum(method == "getWebhookInfo" for method, _ in self.double.calls)

    @property
    def logged(self) -> Told:
        """What the log was told."""
        found = []
        for line in self.daemon.logged(" ALERT "):
            word, alert, *rest = line.partition(" ALERT ")[2].split(" ")
            again = any(field.startswith("since=") for field in rest)
            found.append(("repeat" if again else word, alert))
        return found

    @property
    def chat(self) -> Told:
        """What the chat was told."""
        words = {"FIRING": "firing", "STILL FIRING": "repeat", "RESOLVED": "resolved"}
        heads = [message["text"].split("\n")[0].rpartition(" ") for message in self.double.sent]
        return [(words[word], alert) for word, _, alert in heads]

    @property
    def payloads(self) -> list[dict[str, Any]]:
        """What the JSON webhook was sent."""
        return [request.update for request in self.sink.received]

    @property
    def posted(self) -> Told:
        """What the JSON webhook was told."""
        return [
            ("repeat" if payload["repeat"] else payload["status"], payload["alert"])
            for payload in self.payloads
        ]

    async def tells(
        self, *expected: tuple[str, str], within: float = 20.0, chat: bool = True
    ) -> None:
        """Wait until the log and both sinks were told just this; the chat nothing, if it can't."""
        wanted = (list(expected), list(expected), list(expected) if chat else [])

        def told() -> tuple[Told, Told, Told]:
            return self.logged, self.posted, self.chat

        try:
            await until(lambda: told() == wanted, within)
        except AssertionError:
            assert told() == wanted


@asynccontextmanager
async def watched(
    directory: Path, *, store_url: str | None = None, alerts: Any = None, **settings: Any
) -> AsyncIterator[Watched]:
    """All of it, healthy, after a first look. No secret may be in what the daemon printed."""
    shift = directory / "shift"
    shift.write_bytes(struct.pack("d", 0.0))
    sinks = {
        "telegram": {"chat_id": -1001234567890, "message_thread_id": 7},
        "webhook": {"url_env": "SINK_URL", "headers_env": "SINK_HEADERS"},
        "heartbeat_url_env": "HEARTBEAT_URL",
    }
    async with (
        TelegramDouble(time_scale=0.02) as double,
        Target() as service,
        Target() as sink,
        Target() as heartbeat,
    ):
        double.calls, double.sent = Stamped(), Stamped()
        daemon = Daemon(
            directory,
            settings.pop("routes", None) or [route("shop", service)],
            store_url=store_url,
            environ={
                "BOT_TOKEN": TOKEN,
                "SINK_URL": f"http://127.0.0.1:{sink.port}/{HIDDEN[0]}",
                "SINK_HEADERS": json.dumps({"Authorization": HIDDEN[1]}),
                "HEARTBEAT_URL": f"http://127.0.0.1:{heartbeat.port}/{HIDDEN[2]}",
                "PYTHONPATH": f"{ROOT / 'tests/system/clock'}:{ROOT / 'daemon'}",
                "CLOCK_SHIFT": str(shift),
            },
            bot={
                "name": "main",
                "secret_token_env": "WEBHOOK_SECRET",
                "webhook_url": URL,
                "api_url": double.api_url,
            },
            alerts={**sinks, **(alerts or {})},
            **{"probe": {"interval": "200ms"}, **settings},
        )
        double.resolve[PUBLIC] = f"http://127.0.0.1:{daemon.port}"
        world = Watched(double, daemon, service, sink, heartbeat, shift)
        world.register()
        async with daemon:
            await world.looks()
            yield world
            for secret in HIDDEN:
                assert secret not in daemon.log()
