"""The proxy configurations: accepted by the proxies, and doing what they say."""

import asyncio
import json
import os
import re
import ssl
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import pytest
from quart import Quart, request

from nginx import FILES, NEW, OLD, Nginx, certificate
from tools import ROOT, tool
from twr.edges import http, sockets


class Unix:
    """An address as the configuration gives it."""

    host, port = None, None

    def __init__(self, path: Path) -> None:
        self.path = str(path)


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a self-signed certificate for both names."""
    return certificate(tmp_path_factory.mktemp("tls"))


@pytest.fixture(params=["twr.conf", "twr-proxied.conf"])
def nginx(request: pytest.FixtureRequest, short_path: Path, tls: Path) -> Nginx:
    """Each variant of the nginx configuration."""
    return Nginx(short_path, request.param, tls)


def test_nginx_accepts_the_configuration(nginx: Nginx) -> None:
    """`nginx -t` has no complaint and no warning."""
    done = subprocess.run(nginx.command("-t"), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "[warn]" not in done.stderr


def test_the_proxied_variant_differs_in_the_old_name_only() -> None:
    """Both files share the upstream and the server of the new name."""
    shared = [
        re.findall(r"^(?:upstream|server) .*?^}", (FILES / name).read_text(), re.M | re.S)[1:3]
        for name in ("twr.conf", "twr-proxied.conf")
    ]
    assert shared[0] == shared[1]


def echo() -> Quart:
    """An ingress that tells what reached it."""
    app = Quart("echo")

    async def webhook() -> dict[str, Any]:
        return {
            "body": await request.get_data(as_text=True),
            "forwarded": request.headers.get("X-Forwarded-For"),
            "secret": request.headers.get("X-Telegram-Bot-Api-Secret-Token"),
        }

    app.add_url_rule("/webhooks/telegram", "webhook", webhook, methods=["POST"])
    return app


@asynccontextmanager
async def running(nginx: Nginx) -> AsyncIterator[aiohttp.ClientSession]:
    """nginx in front of an ingress, and a client that knows both names."""
    stop = anyio.Event()
    sock = sockets.bind(Unix(nginx.socket), 0o666)
    serving = asyncio.create_task(http.serve(echo(), sock, stop, grace=2))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        async with nginx:
            connector = aiohttp.TCPConnector(ssl=context)
            async with aiohttp.ClientSession(connector=connector) as session:
                yield session
    finally:
        stop.set()
        await serving


async def post(
    session: aiohttp.ClientSession, nginx: Nginx, name: str, path: str = "/webhooks/telegram"
) -> tuple[int, str | None, str]:
    """Status, Location and body of an answer to an update."""
    headers = {"Host": name, "X-Telegram-Bot-Api-Secret-Token": "s3", "X-Forwarded-For": "6.6.6.6"}
    async with session.post(
        f"https://127.0.0.1:{nginx.tls}{path}",
        data=b'{"update_id":1}',
        headers=headers,
        allow_redirects=False,
    ) as response:
        return response.status, response.headers.get("Location"), await response.text()


@pytest.mark.anyio
async def test_nginx_does_what_it_says(nginx: Nginx) -> None:
    """The new name reaches twr; the old one answers 301, or reaches twr too when proxied.

    The client's own X-Forwarded-For is replaced, its secret header passed on.
    """
    proxied = "location.conf" in (nginx.directory / "twr.conf").read_text().split(OLD)[-1]
    arrived = {"body": '{"update_id":1}', "forwarded": "127.0.0.1", "secret": "s3"}
    async with running(nginx) as session:
        status, _, text = await post(session, nginx, NEW)
        assert (status, json.loads(text)) == (200, arrived)
        status, location, text = await post(session, nginx, OLD)
        if proxied:
            assert (status, json.loads(text)) == (200, arrived)
        else:
            assert (status, location) == (301, f"https://{NEW}/webhooks/telegram")
        status, location, _ = await post(session, nginx, OLD, "/panel?a=1")
        assert (status, location) == (301, f"https://{NEW}/panel?a=1")
        assert (await post(session, nginx, NEW, "/webhooks/telegram/"))[0] == 404


@pytest.fixture
def caddy_home(tmp_path: Path) -> dict[str, str]:
    """An environment in which Caddy writes nowhere else."""
    return {**os.environ, "HOME": str(tmp_path), "XDG_DATA_HOME": str(tmp_path)}


@pytest.mark.parametrize("arguments", [("validate",), ("fmt", "--diff")], ids=["validate", "fmt"])
def test_caddy_accepts_the_configuration(
    caddy_home: dict[str, str], arguments: tuple[str, ...]
) -> None:
    """`caddy validate` and `caddy fmt` have no complaint."""
    file = ROOT / "etc/caddy/Caddyfile"
    where = (
        ["--adapter", "caddyfile", "--config", str(file)] if arguments[0] == "validate" else [file]
    )
    done = subprocess.run(
        [tool("caddy"), *arguments, *where], capture_output=True, text=True, env=caddy_home
    )
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stdout.splitlines() if line[:1] in ("+", "-")] == []


def test_caddy_sends_the_webhook_of_both_names_to_twr(caddy_home: dict[str, str]) -> None:
    """As adapted by Caddy: both names proxy the path, only the old one redirects the rest."""
    done = subprocess.run(
        [tool("caddy"), "adapt", "--config", str(ROOT / "etc/caddy/Caddyfile")],
        capture_output=True,
        text=True,
        env=caddy_home,
        check=True,
    )
    (server,) = json.loads(done.stdout)["apps"]["http"]["servers"].values()
    found = {
        route["match"][0]["host"][0]: [
            inner["handler"]
            for sub in route["handle"][0]["routes"]
            for each in sub["handle"][0]["routes"]
            for inner in each["handle"]
        ]
        for route in server["routes"]
    }
    assert found == {
        NEW: ["reverse_proxy", "static_response"],
        OLD: ["reverse_proxy", "static_response"],
    }
    text = done.stdout
    assert text.count('"dial":"unix//run/twr/ingress.sock"') == 2
    assert text.count('"status_code":301') == 1
