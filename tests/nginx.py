"""A real nginx with the files of etc/nginx, on loopback ports that anybody may bind."""

import os
import re
import socket
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Self

import anyio
from anyio.abc import Process

from tools import ROOT, tool
from until import until

FILES = ROOT / "etc/nginx"
NEW, OLD = "panel-new.example", "panel-old.example"


def certificate(directory: Path) -> Path:
    """A self-signed certificate for both names; the directory it is in."""
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
        os.chmod(directory, 0o755)
        self.directory = directory
        self._process: Process | None = None
        self.tls, self.clear = free_port(), free_port()
        self.socket = directory / "ingress.sock"
        (directory / "twr").mkdir()
        for name in ("location.conf", "tls-new.conf", "tls-old.conf"):
            text = (FILES / name).read_text()
            text = re.sub(r"/etc/letsencrypt/live/[^/]+", str(certificate), text)
            (directory / "twr" / name).write_text(text)
        text = (FILES / variant).read_text().replace("/run/twr/ingress.sock", str(self.socket))
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

    async def __aenter__(self) -> Self:
        """Start it and wait until it listens."""
        self._process = await anyio.open_process(
            self.command(), stdout=None, stderr=subprocess.DEVNULL
        )
        try:
            await until(lambda: _listens(self.tls), 10, "nginx")
        except BaseException:
            await self._end()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._end()

    async def _end(self) -> None:
        assert self._process is not None
        with anyio.CancelScope(shield=True):
            self._process.terminate()
            await self._process.wait()


async def _listens(port: int) -> bool:
    try:
        await (await anyio.connect_tcp("127.0.0.1", port)).aclose()
    except OSError:
        return False
    return True
