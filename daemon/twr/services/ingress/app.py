"""The public listener: a Quart application that answers requests as plain ASGI, without what Quart
does for each: a POST on the webhook's path is the hot path, and bodies of others are not kept."""

import asyncio
import hmac
import logging
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

import anyio
from hypercorn.typing import ASGIReceiveCallable, ASGISendCallable, HTTPScope, Scope
from quart import Quart

from twr.config import Network
from twr.core.jobs import Accepted, Arrival, Destination
from twr.core.matching import Rule, relies_on_username, select
from twr.core.text import clip, kv
from twr.core.update import Facts, InvalidUpdate, parse, read
from twr.core.webhook_url import WRONG_SECRET
from twr.edges.http import serve
from twr.errors import StoreError
from twr.services.ingress import answers
from twr.services.ingress.answers import Answer
from twr.services.ingress.callers import Headers, client_of, may_call

log = logging.getLogger("twr.ingress")

BODY_TIMEOUT = 10.0
SECRET_HEADER = b"x-telegram-bot-api-secret-token"
_KNOCK = WRONG_SECRET.encode()


@dataclass(frozen=True, slots=True)
class Settings:
    """What may change while running. `secrets` are the one or two that Telegram may send."""

    path: str
    max_body: int
    trusted_networks: tuple[Network, ...] | None
    trusted_proxies: tuple[Network | Literal["unix"], ...]
    secrets: tuple[bytes, ...] = field(repr=False)
    rules: tuple[Rule, ...]
    destinations: Mapping[str, Destination]


class Measures(Protocol):
    """Where the ingress counts."""

    def received(self, outcome: str) -> None: ...
    def rejected(self, reason: str) -> None: ...
    def store_error(self) -> None: ...


class Store(Protocol):
    """Where updates go; raises StoreError and its kinds."""

    async def accept(self, arrival: Arrival) -> Accepted: ...


@dataclass(frozen=True, slots=True)
class Dependencies:
    """What the ingress works with. `settings` and `username` are asked for each request;
    `accepted` and `unauthorized` are told of each such call; not of a 401 that `twr webhook set`
    has asked for."""

    settings: Callable[[], Settings]
    username: Callable[[], str | None]
    store: Store
    measures: Measures
    accepted: Callable[[], None]
    unauthorized: Callable[[], None]


class Refused(Exception):  # noqa: N818
    """The request gets this answer and goes no further."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer.word)
        self.answer = answer


class Disconnected(Exception):  # noqa: N818
    """The caller went away before its request had arrived whole."""


class Ingress:
    """One update per request, from its bytes to the answer."""

    def __init__(self, given: Dependencies) -> None:
        self._given = given
        self._warned = False

    async def answer(self, scope: HTTPScope, receive: ASGIReceiveCallable) -> Answer | None:
        """The answer to a POST on the webhook's path; None when nobody waits for it."""
        try:
            body = await self._read(scope, receive)
            answer = await self._accept(body)
        except Refused as refused:
            self._count_refused(refused.answer)
            return refused.answer
        except Disconnected:
            self._given.measures.rejected("disconnected")
            return None
        self._given.measures.received(answer.word)
        return answer

    async def _read(self, scope: HTTPScope, receive: ASGIReceiveCallable) -> bytes:
        settings = self._given.settings()
        length = self._checked(tuple(scope["headers"]), settings)
        if length > settings.max_body:
            raise Refused(answers.TOO_LARGE)
        try:
            async with asyncio.timeout(BODY_TIMEOUT):
                return await _body(receive, settings.max_body)
        except TimeoutError:
            raise Refused(answers.TIMEOUT) from None

    def _checked(self, headers: Headers, settings: Settings) -> int:
        """The Content-Length (0 where there is none) of a request with the right secret."""
        given: list[bytes] = []
        length = 0
        for name, value in headers:
            if name == SECRET_HEADER:
                given.append(value)
            elif name == b"content-length":
                length = int(value)
        if len(given) != 1 or not _is_one_of(given[0], settings.secrets):
            if given != [_KNOCK]:
                self._given.unauthorized()
            raise Refused(answers.UNAUTHORIZED)
        return length

    async def _accept(self, body: bytes) -> Answer:
        try:
            facts = read(parse(body))
        except InvalidUpdate:
            raise Refused(answers.INVALID) from None
        settings = self._given.settings()
        username = self._given.username()
        names = select(settings.rules, facts, username)
        if username is None:
            self._warn_once(settings.rules, facts)
        if not names:
            self._given.accepted()
            return answers.IGNORED
        accepted = await self._store(_arrival(facts, body, names, settings))
        self._given.accepted()
        return answers.DUPLICATE if accepted.deliveries is None else _queued(accepted.deliveries)

    async def _store(self, arrival: Arrival) -> Accepted:
        try:
            return await self._given.store.accept(arrival)
        except StoreError as error:
            log.warning("update not stored %s", kv(error=error))
        self._given.measures.store_error()
        raise Refused(answers.UNAVAILABLE)

    def _count_refused(self, answer: Answer) -> None:
        self._given.measures.rejected(answer.word)

    def _warn_once(self, rules: tuple[Rule, ...], facts: Facts) -> None:
        if not self._warned and relies_on_username(rules, facts, None):
            self._warned = True
            log.warning(
                "username unknown: commands addressed to any bot match; set bot.username or a token"
            )


_QUEUED = tuple(answers.queued(n) for n in range(64))


def _queued(deliveries: int) -> Answer:
    return _QUEUED[deliveries] if deliveries < len(_QUEUED) else answers.queued(deliveries)


def _is_one_of(given: bytes, secrets: tuple[bytes, ...]) -> bool:
    """Compared in a time that tells nothing, whichever of the secrets it is."""
    found = False
    for secret in secrets:
        found = hmac.compare_digest(given, secret) or found
    return found


def _arrival(facts: Facts, body: bytes, names: tuple[str, ...], settings: Settings) -> Arrival:
    return Arrival(
        update_id=facts.update_id,
        type=clip(facts.type or "", 64),
        lane=facts.lane,
        expires_after=facts.expires_after,
        body=body,
        destinations=tuple(settings.destinations[name] for name in names),
    )


async def _body(receive: ASGIReceiveCallable, most: int) -> bytes:
    """The whole body; raises Refused over `most` bytes, Disconnected when it ends early."""
    chunks: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] != "http.request":
            raise Disconnected
        chunk = message["body"]
        size += len(chunk)
        if size > most:
            raise Refused(answers.TOO_LARGE)
        if chunk:
            chunks.append(chunk)
        if not message["more_body"]:
            return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def application(given: Dependencies) -> Quart:
    """The ASGI application of the public listener."""
    app = Quart("twr.ingress", static_folder=None)
    ingress = Ingress(given)

    rest = app.asgi_app

    async def asgi(scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        if scope["type"] != "http":
            await rest(scope, receive, send)
            return
        settings = given.settings()
        if settings.trusted_networks is not None and not _may_call(scope, settings):
            given.measures.rejected(answers.FORBIDDEN.word)
            await _send(send, answers.FORBIDDEN)
        elif scope["method"] == "POST" and scope["raw_path"] == settings.path.encode():
            answer = await ingress.answer(scope, receive)
            if answer is not None:
                await _send(send, answer)
        else:
            found = scope["raw_path"] == settings.path.encode()
            refusal = answers.METHOD_NOT_ALLOWED if found else answers.NOT_FOUND
            given.measures.rejected(refusal.word)
            await _send(send, refusal)

    app.asgi_app = asgi  # type: ignore[method-assign]
    return app


def _may_call(scope: HTTPScope, settings: Settings) -> bool:
    peer = scope["client"][0] if scope["client"] else None
    client = client_of(peer, tuple(scope["headers"]), settings.trusted_proxies)
    return may_call(client, settings.trusted_networks)


async def _send(send: ASGISendCallable, answer: Answer) -> None:
    await send({"type": "http.response.start", "status": answer.status, "headers": answer.headers})
    await send({"type": "http.response.body", "body": answer.body, "more_body": False})


async def run(given: Dependencies, sock: socket.socket, stop: anyio.Event) -> None:
    """Serve the public listener on `sock` until `stop` is set. It can be run again."""
    await serve(application(given), sock, stop)
