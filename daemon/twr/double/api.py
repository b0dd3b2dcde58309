"""The Bot API side of the double: methods, tokens, and the faults it can be told to have."""

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

from aiohttp import web

from twr.double.rules import RefusalError

Handler = Callable[[Mapping[str, Any]], tuple[Any, str | None]]
"""Takes a call's parameters, gives its result and the description that goes with it."""

REFUSALS = {
    "400": "Bad Request",
    "401": "Unauthorized",
    "403": "Forbidden",
    "404": "Not Found",
    "500": "Internal Server Error",
    "502": "Bad Gateway",
}
_HTML = "<html><head><title>502 Bad Gateway</title></head><body></body></html>"


class Backend(Protocol):
    """What the Bot API side asks of the double that it belongs to."""

    token: str
    calls: list[tuple[str, dict[str, Any]]]
    closing: asyncio.Event

    @property
    def methods(self) -> Mapping[str, Handler]:
        """Its methods, by name in lower case."""

    @property
    def api_fault(self) -> str | None:
        """What is wrong with it now."""

    def too_fast(self, method: str, params: Mapping[str, Any]) -> bool:
        """Whether this call comes too soon after the last one of its kind."""


def application(backend: Backend) -> web.Application:
    """The server's application: /bot<token>/<method>, by GET or POST."""

    async def call(request: web.Request) -> web.StreamResponse:
        params = await _parameters(request)
        backend.calls.append((request.match_info["method"], params))
        fault = backend.api_fault
        if fault is not None:
            return await _fault(fault, request, backend.closing)
        return _answer(backend, request.match_info["token"], request.match_info["method"], params)

    app = web.Application(client_max_size=2**20)
    app.router.add_route("*", "/bot{token}/{method}", call)
    app.router.add_route("*", "/{rest:.*}", _unknown)
    return app


async def _unknown(request: web.Request) -> web.StreamResponse:
    return _refused(404, "Not Found")


def _answer(
    backend: Backend, token: str, method: str, params: Mapping[str, Any]
) -> web.StreamResponse:
    if ":" not in token:
        return _refused(404, "Not Found")
    if token != backend.token:
        return _refused(401, "Unauthorized")
    handler = backend.methods.get(method.lower())
    if handler is None:
        return _refused(404, "Not Found: method not found")
    if backend.too_fast(method.lower(), params):
        return _flooded(1)
    try:
        result, description = handler(params)
    except RefusalError as refusal:
        return _refused(refusal.code, refusal.description, **refusal.parameters)
    answer = {"ok": True, "result": result}
    if description is not None:
        answer["description"] = description
    return web.json_response(answer)


async def _parameters(request: web.Request) -> dict[str, Any]:
    params: dict[str, Any] = dict(request.query)
    if request.content_type == "application/json":
        try:
            value = await request.json()
        except ValueError:
            value = None
        return params | value if isinstance(value, dict) else params
    form = await request.post()
    for name, field in form.items():
        content = field.file.read() if isinstance(field, web.FileField) else field
        params[name] = content.decode() if isinstance(content, bytes) else content
    return params


def _refused(code: int, description: str, **parameters: int) -> web.Response:
    answer: dict[str, Any] = {"ok": False, "error_code": code, "description": description}
    if parameters:
        answer["parameters"] = parameters
    return web.json_response(answer, status=code)


def _flooded(seconds: int) -> web.Response:
    description = f"Too Many Requests: retry after {seconds}"
    response = _refused(429, description, retry_after=seconds)
    response.headers["Retry-After"] = str(seconds)
    return response


async def _fault(fault: str, request: web.Request, closing: asyncio.Event) -> web.StreamResponse:
    if fault in REFUSALS:
        return _refused(int(fault), REFUSALS[fault])
    if fault in _STRANGE:
        return _STRANGE[fault]()
    if fault not in _LASTING:
        raise ValueError(f"no such fault: {fault}")
    return await _LASTING[fault](request, closing)


_STRANGE: Mapping[str, Callable[[], web.Response]] = {
    "429": lambda: _flooded(3),
    "html": lambda: web.Response(text=_HTML, content_type="text/html"),
    "empty": lambda: web.Response(),
    "shape": lambda: web.json_response({"ok": True, "result": ["not", "an", "object"]}),
    "array": lambda: web.json_response([{"ok": True}]),
    "charset": lambda: web.Response(
        body=json.dumps({"ok": True, "result": {}}).encode("utf-16"),
        headers={"Content-Type": "application/json; charset=no-such-charset"},
    ),
    "redirect": lambda: web.Response(status=302, headers={"Location": "http://127.0.0.1:1/"}),
}


async def _hang(request: web.Request, closing: asyncio.Event) -> web.StreamResponse:
    await closing.wait()
    return _refused(500, "Internal Server Error")


async def _endless(request: web.Request, closing: asyncio.Event) -> web.StreamResponse:
    """A byte of white space now and then, and never an end."""
    return await _stream(request, closing, b" ", count=None, pause=0.02)


async def _huge(request: web.Request, closing: asyncio.Event) -> web.StreamResponse:
    """A hundred megabytes."""
    return await _stream(request, closing, b" " * 65536, count=1600, pause=0.0)


async def _stream(
    request: web.Request, closing: asyncio.Event, chunk: bytes, *, count: int | None, pause: float
) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "application/json"})
    await response.prepare(request)
    written = 0
    with contextlib.suppress(ConnectionError):
        while written != count and not closing.is_set():
            await response.write(chunk)
            await asyncio.sleep(pause)
            written += 1
    return response


async def _close(request: web.Request, closing: asyncio.Event) -> web.StreamResponse:
    if request.transport is not None:
        request.transport.abort()
    return web.Response()


_LASTING: Mapping[str, Callable[[web.Request, asyncio.Event], Awaitable[web.StreamResponse]]] = {
    "hang": _hang,
    "endless": _endless,
    "huge": _huge,
    "close": _close,
}

FAULTS = (*REFUSALS, *_STRANGE, *_LASTING)
