"""The answers a caller gets: JSON, never with a key `method`, which Telegram would execute."""

import json
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Answer:
    """A status, its word, and the whole answer as bytes."""

    status: int
    word: str
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes


def _answer(status: int, word: str, *extra: tuple[bytes, bytes], **more: int) -> Answer:
    body = json.dumps({"status": word, **more}, separators=(",", ":")).encode()
    length = str(len(body)).encode()
    headers = ((b"content-type", b"application/json"), (b"content-length", length), *extra)
    return Answer(status, word, headers, body)


def queued(deliveries: int) -> Answer:
    """The update and its deliveries are stored."""
    return _answer(202, "queued", deliveries=deliveries)


DUPLICATE = _answer(202, "duplicate", deliveries=0)
IGNORED = _answer(202, "ignored", deliveries=0)
INVALID = _answer(400, "invalid")
UNAUTHORIZED = _answer(401, "unauthorized")
FORBIDDEN = _answer(403, "forbidden")
NOT_FOUND = _answer(404, "not_found")
METHOD_NOT_ALLOWED = _answer(405, "method_not_allowed", (b"allow", b"POST"))
TIMEOUT = _answer(408, "timeout")
TOO_LARGE = _answer(413, "too_large")
UNAVAILABLE = _answer(503, "unavailable", (b"retry-after", b"5"))
