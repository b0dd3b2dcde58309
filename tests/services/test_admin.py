"""The admin listener over a real socket."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import anyio
import pytest

from twr.edges.metrics import Metrics
from twr.errors import StoreUnavailable
from twr.services import admin

pytestmark = pytest.mark.anyio


@dataclass
class Daemon:
    """What the listener asks; tests change it."""

    reasons: list[str] = field(default_factory=list)
    status: dict[str, Any] = field(default_factory=dict)
    error: Exception | None = None
    hang: bool = False

    def ready(self) -> list[str]:
        return self.reasons

    async def overview(self) -> dict[str, Any]:
        if self.error is not None:
            raise self.error
        if self.hang:
            await anyio.sleep_forever()
        return self.status

    async def metrics(self) -> bytes:
        return Metrics("1.2.3").render()


@asynccontextmanager
async def admin_of(daemon: Daemon) -> AsyncIterator[aiohttp.ClientSession]:
    """A client of a running listener."""
    sock = socket.create_server(("127.0.0.1", 0))
    base = f"http://127.0.0.1:{sock.getsockname()[1]}"
    stop = anyio.Event()
    task = asyncio.create_task(
        admin.run(sock, stop, ready=daemon.ready, status=daemon.overview, metrics=daemon.metrics)
    )
    try:
        async with aiohttp.ClientSession(base) as session:
            yield session
    finally:
        stop.set()
        await task


async def ask(session: aiohttp.ClientSession, path: str, method: str = "GET") -> tuple[int, Any]:
    """Status and JSON of an answer."""
    async with session.request(method, path, allow_redirects=False) as response:
        assert response.headers["Content-Type"] == "application/json"
        return response.status, json.loads(await response.text() or "null")


async def test_a_running_process_is_healthy_even_when_not_ready() -> None:
    """Liveness asks nothing of the store."""
    async with admin_of(Daemon(reasons=["store down"])) as session:
        assert await ask(session, "/-/healthy") == (200, {"status": "healthy"})


async def test_readiness_names_every_reason() -> None:
    """503 with the reasons, 200 as soon as there are none."""
    daemon = Daemon(reasons=["store down", "claim loop stale: shop"])
    async with admin_of(daemon) as session:
        assert await ask(session, "/-/ready") == (
            503,
            {"status": "unready", "reasons": ["store down", "claim loop stale: shop"]},
        )
        daemon.reasons = []
        assert await ask(session, "/-/ready") == (200, {"status": "ready"})


async def test_metrics_are_in_the_text_format() -> None:
    """The content type is the one Prometheus knows, and the body ends in a line break."""
    async with admin_of(Daemon()) as session, session.get("/metrics") as response:
        text = await response.text()
        assert response.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert 'twr_build_info{version="1.2.3"} 1.0\n' in text
    assert text.endswith("\n")


async def test_status_is_passed_on_in_its_own_order() -> None:
    """The JSON is what was given, keys in the same order."""
    status = {"version": "1.2.3", "instance": "vps-1", "alerts": [], "store": {"ok": True}}
    async with admin_of(Daemon(status=status)) as session:
        code, found = await ask(session, "/status")
        assert (code, list(found.items())) == (200, list(status.items()))


async def test_a_store_that_is_down_is_told() -> None:
    """An error of ours is a 503 with its one line."""
    async with admin_of(Daemon(error=StoreUnavailable("the store is down"))) as session:
        assert await ask(session, "/status") == (
            503,
            {"status": "unavailable", "reasons": ["the store is down"]},
        )


async def test_a_status_that_takes_too_long_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """No request hangs longer than the bound."""
    monkeypatch.setattr(admin, "ANSWER_WITHIN", 0.05)
    async with admin_of(Daemon(hang=True)) as session:
        assert await ask(session, "/status") == (
            503,
            {"status": "unavailable", "reasons": ["no answer within 0.05 s"]},
        )


async def test_a_mistake_is_logged_and_shows_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """An unexpected error is a bare 500, its traceback in the log."""
    async with admin_of(Daemon(error=ValueError("private"))) as session:
        assert await ask(session, "/status") == (500, {"status": "error"})
    assert [record.getMessage() for record in caplog.records] == ["admin request failed"]


@pytest.mark.parametrize(
    ("method", "path", "expected"),
    [
        ("GET", "/", (404, {"status": "not_found"})),
        ("GET", "/metrics/", (404, {"status": "not_found"})),
        ("GET", "/-//healthy", (404, {"status": "not_found"})),
        ("GET", "/static/x", (404, {"status": "not_found"})),
        ("POST", "/status", (405, {"status": "method_not_allowed"})),
        ("OPTIONS", "/metrics", (405, {"status": "method_not_allowed"})),
        ("DELETE", "/-/ready", (405, {"status": "method_not_allowed"})),
        ("HEAD", "/-/healthy", (200, None)),
    ],
)
async def test_everything_else_is_refused_as_json(
    method: str, path: str, expected: tuple[int, Any]
) -> None:
    """The listener reads only, and no answer is an HTML page."""
    async with admin_of(Daemon()) as session:
        assert await ask(session, path, method) == expected


async def test_a_refused_method_names_the_allowed_ones() -> None:
    """405 carries Allow, as RFC 9110 asks for."""
    async with admin_of(Daemon()) as session, session.post("/status") as response:
        assert {each.strip() for each in response.headers["Allow"].split(",")} == {"GET", "HEAD"}
