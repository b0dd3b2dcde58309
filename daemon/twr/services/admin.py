"""The admin listener: health, readiness, metrics and status; it changes nothing."""

import json
import logging
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import anyio
from quart import Quart, Response
from werkzeug.exceptions import HTTPException

from twr.edges import http
from twr.edges.metrics import CONTENT_TYPE
from twr.errors import TwrError

log = logging.getLogger("twr.admin")

ANSWER_WITHIN = 5.0

Ready = Callable[[], Sequence[str]]
Status = Callable[[], Awaitable[dict[str, Any]]]
Render = Callable[[], Awaitable[bytes]]


async def run(
    sock: socket.socket, stop: anyio.Event, *, ready: Ready, status: Status, metrics: Render
) -> None:
    """Answer on the listening `sock` until `stop`.

    `ready` gives the reasons why the process is not ready, none when it is; `status` the
    JSON of `twr status --json`; `metrics` the text of Prometheus.
    """
    app = application(ready=ready, status=status, metrics=metrics)
    await http.serve(app, sock, stop, grace=ANSWER_WITHIN + 1)


def application(*, ready: Ready, status: Status, metrics: Render) -> Quart:
    """The admin application, see `run`."""
    app = Quart("twr.admin", static_folder=None)
    app.url_map.merge_slashes = False

    async def healthy() -> Response:
        return _json(200, {"status": "healthy"})

    async def readiness() -> Response:
        reasons = list(ready())
        if reasons:
            return _json(503, {"status": "unready", "reasons": reasons})
        return _json(200, {"status": "ready"})

    async def prometheus() -> Response:
        return await _within(metrics, lambda text: _answer(200, text, CONTENT_TYPE))

    async def overview() -> Response:
        return await _within(status, lambda found: _json(200, found))

    for path, view in (
        ("/-/healthy", healthy),
        ("/-/ready", readiness),
        ("/metrics", prometheus),
        ("/status", overview),
    ):
        app.add_url_rule(
            path, view.__name__, view, methods=["GET"], provide_automatic_options=False
        )
    app.register_error_handler(HTTPException, _refused)
    app.register_error_handler(Exception, _failed)
    return app


async def _within(ask: Callable[[], Awaitable[Any]], show: Callable[[Any], Response]) -> Response:
    try:
        with anyio.fail_after(ANSWER_WITHIN):
            return show(await ask())
    except TimeoutError:
        reason = f"no answer within {ANSWER_WITHIN:g} s"
    except TwrError as error:
        reason = str(error)
    return _json(503, {"status": "unavailable", "reasons": [reason]})


async def _refused(error: HTTPException) -> Response:
    response = _json(error.code or 500, {"status": error.name.lower().replace(" ", "_")})
    for name, value in error.get_headers():
        if name == "Allow":
            response.headers[name] = value
    return response


async def _failed(error: Exception) -> Response:
    log.error("admin request failed", exc_info=error)
    return _json(500, {"status": "error"})


def _json(status: int, content: dict[str, Any]) -> Response:
    return _answer(status, json.dumps(content) + "\n", "application/json")


def _answer(status: int, body: str | bytes, content_type: str) -> Response:
    headers = {"Content-Type": content_type, "Cache-Control": "no-store"}
    return Response(body, status, headers)
