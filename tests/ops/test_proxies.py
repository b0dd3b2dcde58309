"""The proxy configurations: accepted by the proxies, and doing what they say."""

import asyncio
import json
import os
import re
import socket
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

from tools import ROOT, tool
from twr.edges import http, sockets

NGINX = ROOT / "etc/nginx"
NEW, OLD = "panel-new.example", "panel-old.example"


class Unix:
    """An address as the configuration gives it."""

    host, port = None, None

    def __init__(self, path: Path) -> None:
        self.path = str(path)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a self-signed certificate for both names."""
    directory = tmp_path_factory.mktemp("tls")
    subprocess.run(
        [
            tool("openssl"),
            *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"),
            *("-nodes", "-days", "2", "-subj", f"/CN={NEW}"),
            *("-addext", f"subjectAltName=DNS:{NEW},DNS:{OLD}"),
            *("-keyout", directory / "privkey.pem", "-out", directory / "fullchain.pem"),
        ],
        check=True,
        capture_output=True,
    )
    return directory


def free_port() -> int:
    """A port that is free now."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port: int = sock.getsockname()[1]
        return port


class Nginx:
    """Our files under an nginx.conf, on ports that anybody may bind."""

    def __init__(self, directory: Path, variant: str, certificate: Path) -> None:
        self.directory = directory
        self.tls, self.clear = free_port(), free_port()
        self.socket = directory / "ingress.sock"
        (directory / "twr").mkdir()
        for name in ("location.conf", "tls-new.conf", "tls-old.conf"):
            text = (NGINX / name).read_text()
            text = re.sub(r"/etc/letsencrypt/live/[^/]+", str(certificate), text)
            (directory / "twr" / name).write_text(text)
        text = (NGINX / variant).read_text().replace("/run/twr/ingress.sock", str(self.socket))
        text = re.sub(r"listen \[::\].*\n", "", text)
        text = text.replace("listen 443", f"listen 127.0.0.1:{self.tls}")
        text = text.replace("listen 80", f"listen 127.0.0.1:{self.clear}")
        (directory / "twr.conf").write_text(text)
        temporary = "".join(
            f"{kind}_temp_path {directory}/{kind};\n"
            for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        )
        (directory / "nginx.conf").write_text(
            f"daemon off;\npid {directory}/pid;\nworker_processes 1;\nevents {{}}\n"
            f"http {{\naccess_log off;\n{temporary}include twr.conf;\n}}\n"
        )

    def command(self, *more: str) -> list[str]:
        return [
            tool("nginx"),
            *("-p", str(self.directory), "-c", str(self.directory / "nginx.conf")),
            *("-e", "stderr", *more),
        ]


@pytest.fixture(params=["twr.conf", "twr-proxied.conf"])
def nginx(request: pytest.FixtureRequest, short_path: Path, certificate: Path) -> Nginx:
    """Each variant of the nginx configuration."""
    os.chmod(short_path, 0o755)
    return Nginx(short_path, request.param, certificate)


def test_nginx_accepts_the_configuration(nginx: Nginx) -> None:
    """`nginx -t` has no complaint and no warning."""
    done = subprocess.run(nginx.command("-t"), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "[warn]" not in done.stderr


def test_the_proxied_variant_differs_in_the_old_name_only() -> None:
    """Both files share the upstream and the server of the new name."""
    shared = [
        re.findall(r"^(?:upstream|server) .*?^}", (NGINX / name).read_text(), re.M | re.S)[1:3]
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
    process = await anyio.open_process(nginx.command(), stdout=None, stderr=subprocess.DEVNULL)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with anyio.fail_after(10):
            while True:
                try:
                    await (await anyio.connect_tcp("127.0.0.1", nginx.tls)).aclose()
                    break
                except OSError:
                    await anyio.sleep(0.02)
        connector = aiohttp.TCPConnector(ssl=context)
        async with aiohttp.ClientSession(connector=connector) as session:
            yield session
    finally:
        process.terminate()
        await process.wait()
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
