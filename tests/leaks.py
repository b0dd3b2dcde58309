"""Whether a text shows a secret: whole or a part of it, plain or in a form it could be seen in."""

import base64
import html
import json
from collections.abc import Iterable, Iterator
from functools import cache
from urllib.parse import quote

# So many characters of a secret in a row are no accident, and too many to be told.
PART = 8


def forms(secret: str) -> set[str]:
    """The forms in which a secret could be seen."""
    data = secret.encode()
    plain = {secret, quote(secret, safe=""), quote(secret), repr(secret)[1:-1], html.escape(secret)}
    plain |= {json.dumps(secret, ensure_ascii=how)[1:-1] for how in (True, False)}
    encoded = {base64.b64encode(before + data).decode() for before in (b"", b":", b"user:")}
    return plain | encoded | {data.hex(), data.hex().upper()}


def parts(text: str) -> Iterator[str]:
    """What of a text would be a leak."""
    for start in range(max(1, len(text) - PART + 1)):
        yield text[start : start + PART]


@cache
def _traces(secret: str) -> frozenset[str]:
    # What comes before a password in a login is none of it.
    known = set(parts(base64.b64encode(b"user:").decode().rstrip("=")))
    return frozenset(part for form in forms(secret) for part in parts(form)) - known


def leaks(text: str, secrets: Iterable[str]) -> list[str]:
    """The lines of a text in which a part of a secret stands."""
    traces = frozenset[str]().union(*map(_traces, secrets))
    return [line for line in text.splitlines() if not traces.isdisjoint(parts(line))]
