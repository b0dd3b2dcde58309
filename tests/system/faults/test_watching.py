"""What the daemon says of itself and of the webhook when something is wrong, or was."""

import asyncio
import time
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from system.harness import ROOT, SECRET, Daemon, free_port, message, route
from targets import Target
from twr.core.clock import Clock
from twr.double import TelegramDouble
from until import until

pytestmark = pytest.mark.anyio

# Loaded by Python at the start of the daemon's process: calls of the store that have a file of
# their name in the directory never end, or fail.
BUG = """
import asyncio, pathlib
from twr.edges.store import Store

def bugged(name):
    real = getattr(Store, name)
    async def call(self, *args, **kwargs):
        if pathlib.Path("wedge-" + name).exists():
            await asyncio.Event().wait()
        if pathlib.Path("break-" + name).exists():
            raise ZeroDivisionError("a bug")
        return await real(self, *args, **kwargs)
    setattr(Store, name, call)

for name in ("turn", "beat", "sweep", "reclaim"):
    bugged(name)
"""


def bugged(directory: Path) -> dict[str, str]:
    """The environment of a daemon with these bugs in wait."""
    hooks = directory / "hooks"
    hooks.mkdir(parents=True)
    (hooks / "sitecustomize.py").write_text(BUG)
    return {"PYTHONPATH": f"{hooks}:{ROOT / 'daemon'}"}


@pytest.mark.slow
async def test_a_wedged_loop(short_path: Path) -> None:
    """A loop that claims, or looks after leases, hangs for ever: readiness is 503 within 30 s and
    names it, while the ingress accepts."""

    async def wedge(name: str, loop: str) -> None:
        path = short_path / name
        async with (
            Target() as target,
            Daemon(path, [route("shop", target)], environ=bugged(path)) as daemon,
        ):
            await daemon.accepts(message(1))
            await daemon.comes("shop", delivered=1)
            (path / f"wedge-{name}").touch()
            began = time.monotonic()

            async def unready() -> bool:
                status, body = await daemon.readiness()
                return status == 503 and body["reasons"] == [f"{loop} is stale"]

            await until(unready, 30, "readiness 503")
            assert time.monotonic() - began < 30
            assert (await daemon.post(message(2)))[0] == 202

    async with asyncio.TaskGroup() as tasks:
        for name, loop in (("turn", "delivery"), ("beat", "recovery"), ("sweep", "recovery")):
            tasks.create_task(wedge(name, loop))


async def test_a_loop_that_crashes(short_path: Path) -> None:
    """Once: it goes on and loses nothing; again and again: the process ends, not with 0, so that
    it is restarted, and the next one delivers."""
    path = short_path / "bugged"
    async with (
        Target() as target,
        Daemon(path, [route("shop", target)], environ=bugged(path)) as daemon,
    ):
        bug = path / "break-turn"
        bug.touch()
        await daemon.accepts(message(1))
        await daemon.says("task crashed task=delivery")
        bug.unlink()
        await daemon.accepts(message(2))
        await daemon.comes("shop", delivered=2, waiting=0)
        bug.touch()
        status, _ = await daemon.post(message(3))
        assert status == 202
        assert await daemon.ended(60) == 1
        assert daemon.logged("task delivery crashed 5 times in 60 s")
        bug.unlink()
        await daemon.start()
        await daemon.comes("shop", waiting=0)
    # The end of the process fell between the third's answer and its settle.
    assert target.ids in ([1, 2, 3], [1, 2, 3, 3])


class Watched:
    """A daemon with a bot, and the Telegram it has its webhook at. `ago` sets back Telegram's
    clock, in seconds."""

    def __init__(self, directory: Path, target: Target) -> None:
        self.ago = 0.0
        clock = Clock(lambda: time.time() - self.ago, time.monotonic)
        self.telegram = TelegramDouble(time_scale=0.02, clock=clock)
        self.daemon = Daemon(directory, [route("shop", target)], probe={"interval": "200ms"})

    def configure(self) -> None:
        """Make them know each other; Telegram listens already."""
        self.daemon.settings["bot"] |= {
            "api_url": self.telegram.api_url,
            "token_env": "BOT_TOKEN",
            "webhook_url": "https://bot.example/hook",
        }
        self.daemon.environ["BOT_TOKEN"] = self.telegram.token
        self.lead_to(self.daemon.port)

    def lead_to(self, port: int) -> None:
        """Where the webhook's host name leads."""
        self.telegram.resolve["bot.example"] = f"http://127.0.0.1:{port}"

    def set_webhook(self, secret: str = SECRET) -> None:
        self.telegram.set_webhook("https://bot.example/hook", secret_token=secret)

    async def info(self) -> dict[str, Any]:
        """What Telegram tells of the webhook."""
        async with (
            aiohttp.ClientSession() as session,
            session.get(
                f"{self.telegram.api_url}/bot{self.telegram.token}/getWebhookInfo"
            ) as response,
        ):
            result: dict[str, Any] = (await response.json())["result"]
            return result

    async def error_age(self) -> float | None:
        """How many seconds old the last error is that Telegram tells of."""
        date = (await self.info()).get("last_error_date")
        return None if date is None else time.time() - date


async def test_a_stale_secret_at_telegram(short_path: Path) -> None:
    """The URL is right and the secret is not: an alert names the secret, and when it is set
    right, everything that was refused is delivered."""
    async with Target() as target:
        watched = Watched(short_path, target)
        async with watched.telegram as telegram:
            watched.configure()
            watched.set_webhook(secret="an-older-secret")
            async with watched.daemon as daemon:
                for n in range(3):
                    telegram.enqueue("message", update_id=100 + n)
                await daemon.says("ALERT firing webhook_secret_mismatch .*secret")
                status = await daemon.status()
                assert "webhook_secret_mismatch" in {alert["name"] for alert in status["alerts"]}
                assert status["webhook"]["matches"] is True
                assert target.ids == []
                watched.set_webhook()
                await telegram.drained()
                await until(lambda: set(target.ids) == {100, 101, 102}, 10, "what was refused")
                assert "an-older-secret" not in daemon.log()


async def test_an_old_error(short_path: Path) -> None:
    """last_error_date is two days old and nothing pends: no alert, though the text is there, at
    the first look and at all that follow; the same text with a new date is one."""
    async with Target() as target:
        watched = Watched(short_path, target)
        async with watched.telegram as telegram:
            watched.configure()
            watched.set_webhook()
            watched.ago = 2 * 86_400
            watched.lead_to(free_port())
            telegram.enqueue("message", update_id=1)
            await until(watched.error_age, 10, "the old error")
            # Another one takes it meanwhile, so that no error is a new one.
            watched.lead_to(target.port)
            await telegram.drained()
            watched.ago = 0
            watched.lead_to(watched.daemon.port)
            async with watched.daemon as daemon:
                looks = [await looked(daemon)]
                while len(looks) < 4:
                    looks.append(await looked(daemon, after=looks[-1]["checked_at"]))
                assert looks[-1]["last_error"] == "Connection refused"
                assert looks[-1]["pending"] == 0
                assert await watched.error_age() == pytest.approx(2 * 86_400, abs=60)
                assert daemon.logged("ALERT") == []
                assert (await daemon.status())["alerts"] == []
                watched.lead_to(free_port())
                telegram.enqueue("message", update_id=2)
                await daemon.says("ALERT firing webhook_error .*Connection refused")


async def looked(daemon: Daemon, after: str | None = None) -> dict[str, Any]:
    """What the status tells of the webhook once it was looked at, or looked at again."""

    async def newer() -> dict[str, Any] | None:
        webhook: dict[str, Any] = (await daemon.status())["webhook"]
        return webhook if webhook["checked_at"] not in (None, after) else None

    found = await until(newer, 10, "a look at the webhook")
    assert isinstance(found, dict)
    return found
