"""POSTs of a process that was held up: stopped, or starved of its processor."""

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import anyio
import pytest
import uvloop

from twr.core.outcome import Answer
from twr.edges.sender import Sender

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    """Both event loops: uvloop, the daemon's own, runs what is due before it reads."""
    factory = uvloop.new_event_loop if request.param == "uvloop" else asyncio.new_event_loop
    return "asyncio", {"loop_factory": factory}


class Slow(BaseHTTPRequestHandler):
    """Answers after 100 ms; to /never not at all."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        time.sleep(0.1 if self.path != "/never" else 1.5)
        if self.path != "/never":
            self.send_response(200, "Fine")
            self.send_header("Content-Length", "0")
            self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def address() -> Iterator[str]:
    """A server on threads of its own: it goes on while the loop is held up."""
    with HTTPServer(("127.0.0.1", 0), Slow) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


async def post_held_up(url: str, seconds: float = 0.6) -> tuple[Answer, float]:
    """The answer to a POST with 300 ms to go, the loop held up for so long after 50 ms."""
    sender = Sender(1)
    answers: list[Answer] = []

    async def post() -> None:
        answers.append(await sender.post(url, b"{}", {}, 0.3))

    def hold_up() -> None:
        ours.recv(1)
        time.sleep(seconds)

    # While it reads, which is what a process does when it is stopped.
    ours, theirs = socket.socketpair()
    asyncio.get_running_loop().add_reader(ours, hold_up)
    started = time.monotonic()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(post)
        await anyio.sleep(0.05)
        theirs.send(b"x")
    took = time.monotonic() - started
    asyncio.get_running_loop().remove_reader(ours)
    ours.close()
    theirs.close()
    await sender.close()
    return answers[0], took


@pytest.mark.parametrize("seconds", [0.6, 0.3])
async def test_an_answer_that_came_meanwhile_counts(address: str, seconds: float) -> None:
    """It was there when the timeout ran out, though nobody could look: long ago or just so."""
    answer, _ = await post_held_up(f"{address}/soon", seconds)
    assert answer == Answer(200)


async def test_the_time_added_ends(address: str) -> None:
    """Where no answer comes the attempt still ends, half a second after the hold-up."""
    answer, took = await post_held_up(f"{address}/never")
    assert answer == Answer(None, "timeout after 0.3s")
    assert 1.1 < took < 1.5
