"""POSTs of a process that was held up: stopped, or starved of its processor."""

import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import anyio
import pytest

from twr.core.outcome import Answer
from twr.edges.sender import Sender

pytestmark = pytest.mark.anyio


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


async def post_held_up(url: str) -> tuple[Answer, float]:
    """The answer to a POST with 300 ms to go, the loop held up for 600 ms meanwhile."""
    sender = Sender(1)
    answers: list[Answer] = []

    async def post() -> None:
        answers.append(await sender.post(url, b"{}", {}, 0.3))

    started = time.monotonic()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(post)
        await anyio.sleep(0.05)
        time.sleep(0.6)  # noqa: ASYNC251 - this is what holds the loop up
    took = time.monotonic() - started
    await sender.close()
    return answers[0], took


async def test_an_answer_that_came_meanwhile_counts(address: str) -> None:
    """It was there when the timeout ran out, though nobody could look."""
    answer, _ = await post_held_up(f"{address}/soon")
    assert answer == Answer(200)


async def test_the_time_added_ends(address: str) -> None:
    """Where no answer comes the attempt still ends, half a second after the hold-up."""
    answer, took = await post_held_up(f"{address}/never")
    assert answer == Answer(None, "timeout after 0.3s")
    assert 1.1 < took < 1.5
