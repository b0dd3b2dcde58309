"""The ceiling: Hypercorn with its default protocol settings and no logs, answering and no more.

python -m bench.baseline_bare PORT [--uvloop]

On the event loop that Hypercorn takes by itself, asyncio's, or on uvloop, on which twr runs.
"""

import asyncio
import sys

import uvloop
from hypercorn.asyncio import serve
from hypercorn.config import Config
from hypercorn.typing import ASGIReceiveCallable, ASGISendCallable, Scope

BODY = b'{"status":"queued","deliveries":1}'
HEADERS = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(BODY))]


async def application(scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
    """Read the request, answer 202."""
    if scope["type"] != "http":
        return
    while True:
        message = await receive()
        if message["type"] != "http.request" or not message["more_body"]:
            break
    await send({"type": "http.response.start", "status": 202, "headers": HEADERS})
    await send({"type": "http.response.body", "body": BODY, "more_body": False})


async def main(port: int) -> None:
    """Serve until the process ends."""
    config = Config()
    config.bind = [f"127.0.0.1:{port}"]
    config.accesslog = config.errorlog = None
    await serve(application, config, mode="asgi")


if __name__ == "__main__":
    run = uvloop.run if "--uvloop" in sys.argv[2:] else asyncio.run
    run(main(int(sys.argv[1])))
