"""The incident that twr exists for: the panel moves, Telegram does not follow the redirect.

A real nginx with the files of etc/nginx serves both names and passes the new one's webhook on to
the daemon's unix socket; the Telegram double pushes over TLS.
"""

import asyncio
import ssl
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from nginx import NEW, OLD, Nginx, certificate
from system.harness import ROOT, SECRET, Daemon, route
from targets import Target
from twr.double import TOKEN, TelegramDouble

pytestmark = pytest.mark.anyio

OLD_URL, NEW_URL = (f"https://{name}/webhooks/telegram" for name in (OLD, NEW))


@dataclass
class World:
    """Telegram, nginx, the daemon, and one service that takes all messages."""

    double: TelegramDouble
    daemon: Daemon
    service: Target

    async def twr(self, *words: str) -> tuple[int | None, list[str]]:
        """Run a command on the daemon's configuration: its exit code, the lines it printed."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "twr", *words, "-c", str(self.daemon.file)),
            env={"PYTHONPATH": str(ROOT / "daemon"), **self.daemon.environ},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        out, _ = await process.communicate()
        return process.returncode, out.decode().splitlines()

    def statuses(self, url: str) -> set[int | None]:
        """How pushes to this URL were answered."""
        return {it.status for it in self.double.deliveries if it.url == url}


@asynccontextmanager
async def world(directory: Path, variant: str) -> AsyncIterator[World]:
    """All of it, with the webhook registered at the old name, as before the move."""
    tls = certificate(directory)
    trusted = ssl.create_default_context(cafile=str(tls / "fullchain.pem"))
    async with Target() as service, TelegramDouble(time_scale=0.02, ssl=trusted) as double:
        nginx = Nginx(directory, variant, tls)
        here = f"https://127.0.0.1:{nginx.tls}"
        double.resolve.update({OLD: here, NEW: here})
        double.set_webhook(OLD_URL, secret_token=SECRET, allowed_updates=["message"])
        daemon = Daemon(
            directory,
            [route("support", service, match={"update_types": ["message"]})],
            environ={"BOT_TOKEN": TOKEN},
            bot=_bot(double, NEW_URL),
            listen=f"unix:{nginx.socket}",
            socket_mode="0666",
            path="/webhooks/telegram",
            trusted_networks=["loopback"],
            trusted_proxies=["unix"],
            probe={"interval": "1s"},
        )
        async with daemon, nginx:
            yield World(double, daemon, service)
            assert TOKEN.partition(":")[2] not in daemon.log()


def _bot(double: TelegramDouble, url: str) -> Mapping[str, Any]:
    return {
        "name": "main",
        "secret_token_env": "WEBHOOK_SECRET",
        "webhook_url": url,
        "api_url": double.api_url,
    }


async def test_the_old_name_answers_301_until_the_webhook_is_set(short_path: Path) -> None:
    """Six updates hang, the alerts say so; `twr webhook set`: all arrive, the alerts resolve."""
    async with world(short_path, "twr.conf") as it:
        ids = [it.double.enqueue(user_id=user) for user in range(1, 7)]
        drift = await it.daemon.says("ALERT firing webhook_url_drift")
        assert drift.endswith(f"expected={NEW_URL} actual={OLD_URL}")
        pending = await it.daemon.says("ALERT firing webhook_pending")
        assert "pending=6 accepted=0" in pending
        assert 'last_error="Wrong response from the webhook: 301 Moved Permanently"' in pending
        webhook = (await it.daemon.status())["webhook"]
        assert (webhook["matches"], webhook["pending"]) == (False, 6)
        assert it.statuses(OLD_URL) == {301}
        assert it.service.received == []
        code, lines = await it.twr("webhook", "set", "--wait", "20s")
        assert code == 0, lines
        assert lines[0] == f"before: {OLD_URL}  pending 6"
        assert lines[-1].startswith("pending has fallen from 6 to 0 in ")
        await it.service.has(6)
        assert sorted(it.service.ids) == ids
        assert it.statuses(NEW_URL) == {202}
        await it.daemon.says("ALERT resolved webhook_url_drift")
        await it.daemon.says("ALERT resolved webhook_pending")
        told = it.daemon.logged("ALERT .*(url_drift|pending)")
        assert [line.split("ALERT ")[1].split()[:2] for line in told] == [
            ["firing", "webhook_url_drift"],
            ["firing", "webhook_pending"],
            ["resolved", "webhook_url_drift"],
            ["resolved", "webhook_pending"],
        ]


async def test_a_proxied_old_name_keeps_updates_coming(short_path: Path) -> None:
    """With the old webhook's path passed on nothing hangs; the drift is told all the same."""
    async with world(short_path, "twr-proxied.conf") as it:
        ids = [it.double.enqueue(user_id=user) for user in range(1, 7)]
        await it.double.drained()
        await it.service.has(6)
        assert sorted(it.service.ids) == ids
        assert it.statuses(OLD_URL) == {202}
        await it.daemon.says("ALERT firing webhook_url_drift")
        code, lines = await it.twr("webhook", "set", "--wait", "20s")
        assert code == 0, lines
        await it.daemon.says("ALERT resolved webhook_url_drift")
        await it.double.push(user_id=7)
        assert it.statuses(NEW_URL) == {202}
        assert it.daemon.logged("ALERT firing") == it.daemon.logged(
            "ALERT firing webhook_url_drift"
        )
