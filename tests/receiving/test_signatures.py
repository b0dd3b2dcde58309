"""The receivers of docs/receiving.md take what twr signs, and nothing else."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest

from receiving.page import program, running
from system.harness import Daemon, as_telegram_writes, free_port, message, route
from tools import tool
from twr.core.signing import sign

pytestmark = pytest.mark.anyio

LANGUAGES = ("Python", "Node", "PHP", "Go")
SECRET = "signing-secret"
BODY = '{"update_id":4242,\n"message":{"text":"\\u001b \U0001f9e6 ok"}}'.encode()
RAW = BODY.replace(b"ok", b"ok\xff")


def command(language: str, directory: Path) -> list[str]:
    """How the page's program is started, as the page says; skipped where its tool may lack."""
    source = directory / {"Node": "receiver.mjs", "Go": "receiver.go"}.get(language, "receiver")
    source.write_text(program(language))
    if language == "Python":
        return [sys.executable, str(source)]
    if language == "Node":
        return [tool("node"), str(source)]
    if language == "PHP":
        return [tool("php"), "-S", "127.0.0.1:{port}", str(source)]
    return [_built(source)]


def _built(source: Path) -> str:
    """Go's compiler is large, and so asked of nobody."""
    go = shutil.which("go")
    if go is None:
        pytest.skip("go is not installed")
    output = source.with_suffix("")
    home = {**os.environ, "GOCACHE": str(source.parent / "cache"), "GO111MODULE": "off"}
    subprocess.run([go, "build", "-o", output, source], check=True, env=home)
    return str(output)


@dataclass(frozen=True, slots=True)
class Receiver:
    """A running program of the page."""

    port: int
    log: Path
    session: aiohttp.ClientSession

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/telegram/updates"

    async def post(self, body: bytes, headers: Mapping[str, str]) -> int:
        """The status of its answer."""
        async with self.session.post(self.url, data=body, headers=headers) as response:
            return response.status


def headers(timestamp: int, signature: str) -> dict[str, str]:
    """The headers of a delivery."""
    return {"X-Webhook-Timestamp": str(timestamp), "X-Webhook-Signature": signature}


@pytest.fixture(scope="module", params=LANGUAGES)
async def receiver(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, anyio_backend: str
) -> AsyncIterator[Receiver]:
    """The program of each language, with a secret."""
    directory, port = tmp_path_factory.mktemp(request.param), free_port()
    words = [word.format(port=port) for word in command(request.param, directory)]
    log = directory / "log"
    environ = {"SIGNING_SECRET": SECRET}
    async with aiohttp.ClientSession() as session, running(words, port, environ, log):
        yield Receiver(port, log, session)


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """For the programs, which outlive one test."""
    return "asyncio"


@pytest.mark.parametrize(
    ("secrets", "age", "status"),
    [
        ([SECRET], 0, 200),
        (["another"], 0, 401),
        ([SECRET], 290, 200),
        ([SECRET], -290, 200),
        ([SECRET], 310, 401),
        ([SECRET], -310, 401),
        (["newer", SECRET], 0, 200),
        ([SECRET, "older"], 0, 200),
        (["newer", "older"], 0, 401),
        (["newer", SECRET], 310, 401),
    ],
)
async def test_only_what_is_signed_and_fresh_is_taken(
    receiver: Receiver, secrets: list[str], age: int, status: int
) -> None:
    """One right signature of those listed, no more than five minutes old or ahead."""
    timestamp = int(time.time()) - age
    signature = sign([secret.encode() for secret in secrets], timestamp, BODY)
    assert await receiver.post(BODY, headers(timestamp, signature)) == status


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"X-Webhook-Timestamp": "{now}"},
        {"X-Webhook-Signature": "{right}"},
        {"X-Webhook-Timestamp": "{now}", "X-Webhook-Signature": ""},
        {"X-Webhook-Timestamp": "{now}", "X-Webhook-Signature": "v1="},
        {"X-Webhook-Timestamp": "{now}", "X-Webhook-Signature": ",,\xe9"},
        {"X-Webhook-Timestamp": "{now}.0", "X-Webhook-Signature": "{right}"},
        {"X-Webhook-Timestamp": "-{now}", "X-Webhook-Signature": "{right}"},
        {"X-Webhook-Timestamp": "\xb2", "X-Webhook-Signature": "{right}"},
        {"X-Webhook-Timestamp": "9" * 400, "X-Webhook-Signature": "{right}"},
    ],
    ids=lambda given: (
        ", ".join(f"{key[10:]}={value[:8]}" for key, value in given.items()) or "none"
    ),
)
async def test_no_header_that_is_missing_or_odd_passes(
    receiver: Receiver, given: dict[str, str]
) -> None:
    """A request that twr did not make is refused, and breaks nothing."""
    now = int(time.time())
    right = sign([SECRET.encode()], now, BODY)
    sent = {name: value.format(now=now, right=right) for name, value in given.items()}
    assert await receiver.post(BODY, sent) == 401
    assert await receiver.post(BODY, headers(now, right)) == 200


async def test_a_changed_body_is_refused(receiver: Receiver) -> None:
    """The signature covers each byte of the body."""
    now = int(time.time())
    signature = sign([SECRET.encode()], now, BODY)
    assert await receiver.post(BODY.replace(b"4242", b"4243"), headers(now, signature)) == 401


async def test_bytes_that_are_no_utf8_are_taken(receiver: Receiver) -> None:
    """A button's data can hold any bytes; they are signed and taken like others."""
    now = int(time.time())
    assert await receiver.post(RAW, headers(now, sign([SECRET.encode()], now, RAW))) == 200


async def test_the_daemon_delivers_to_it(receiver: Receiver, short_path: Path) -> None:
    """What the daemon sends is taken while a secret is rotated; a foreign one makes a retry."""
    routes = [
        route("shop", receiver.url, signing_secret_env=["NEW", "SIGNING_SECRET"]),
        route("stranger", receiver.url, signing_secret_env="NEW"),
    ]
    async with Daemon(short_path, routes, environ={"NEW": "newer"}) as daemon:
        await daemon.accepts(message(77_000_001), deliveries=2)
        await daemon.comes("shop", delivered=1, failed_attempts=0, waiting=0)
        await daemon.comes("stranger", delivered=0, delayed=1, failed_attempts=1)
        await daemon.says("delivery failed route=stranger .*status=401")
    assert "update 77000001\n" in receiver.log.read_text()


@pytest.mark.parametrize("language", LANGUAGES)
async def test_it_refuses_to_work_without_a_secret(language: str, tmp_path: Path) -> None:
    """An empty secret is a fault that shows at once, not one that lets everybody in."""
    port = free_port()
    words = [word.format(port=port) for word in command(language, tmp_path)]
    async with AsyncExitStack() as stack:
        try:
            await stack.enter_async_context(
                running(words, port, {"SIGNING_SECRET": ""}, tmp_path / "log")
            )
        except AssertionError:
            assert "SIGNING_SECRET is empty" in (tmp_path / "log").read_text()
            return
        session = await stack.enter_async_context(aiohttp.ClientSession())
        body, now = as_telegram_writes(message(1)), int(time.time())
        receiver = Receiver(port, tmp_path / "log", session)
        assert await receiver.post(body, headers(now, sign([b""], now, body))) == 500
        assert "SIGNING_SECRET is empty" in receiver.log.read_text()
