"""Secrets out of texts: plain, quoted, encoded, and cut off at a text's end."""

import base64
import html
import json
from collections.abc import Iterable, Iterator
from urllib.parse import quote, quote_plus

from twr.core.text import clip, escape

# A secret of a few letters would blank half of every line, and is none.
SHORTEST = 6

_MASK = "***"
_URL_SAFE = str.maketrans("+/", "-_")


class Mask:
    """Replaces secrets by ***, in each form in which a text may hold them.

    It has to see a text as it came: whatever escapes, cuts or changes it goes second, or the
    rest of a secret is no longer known for one. `quoted` has that order. What a text costs
    does not depend on the number of secrets.
    """

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._secrets = frozenset(secret for secret in secrets if len(secret) >= SHORTEST)
        self._forms: dict[str, list[str]] = {}
        for form in sorted({form for secret in self._secrets for form in _forms(secret)}):
            self._forms.setdefault(form[:SHORTEST], []).append(form)

    def adding(self, secrets: Iterable[str]) -> "Mask":
        """A mask of these secrets too; itself where it knows them all."""
        both = Mask(self._secrets.union(secrets))
        return self if both._secrets == self._secrets else both

    def __call__(self, text: str, *, cut: bool = False) -> str:
        """`text` without the secrets. `cut`: its end may be the beginning of one."""
        parts: list[str] = []
        end = 0
        for start, stop in self._found(text, cut):
            if start >= end:
                parts += (text[end:start], _MASK)
            end = max(end, stop)
        return "".join((*parts, text[end:])) if parts else text

    def quoted(self, text: str, limit: int) -> str:
        """A text from outside for people: without secrets, on one line, in `limit` characters."""
        return clip(escape(self(text, cut=True)), limit)

    def _found(self, text: str, cut: bool) -> Iterator[tuple[int, int]]:
        forms = self._forms
        last = len(text) - SHORTEST + 1 if forms else 0
        for at in [at for at in range(last) if text[at : at + SHORTEST] in forms]:
            for form in forms[text[at : at + SHORTEST]]:
                if text.startswith(form, at):
                    yield at, at + len(form)
                elif cut and len(text) - at < len(form) and form.startswith(text[at:]):
                    yield at, len(text)


def _forms(secret: str) -> Iterator[str]:
    data = secret.encode(errors="surrogateescape")
    plain = {secret, *(data.decode(errors=how) for how in ("replace", "backslashreplace"))}
    written = {form for text in plain for form in _in_urls(text, data)}
    written |= {form for text in written for form in _in_documents(text)}
    # A field of the log may quote what was quoted before.
    written |= {json.dumps(text, ensure_ascii=False)[1:-1] for text in written}
    written |= {escape(text) for text in written}
    yield from (form for form in written if len(form) >= SHORTEST)
    yield from (data.hex(), data.hex().upper())
    yield from _in_base64(data)
    yield from _in_base64(secret.encode("latin-1", "replace"))  # as logins often are


def _in_urls(text: str, data: bytes) -> Iterator[str]:
    yield text
    for form in (quote(data, safe=""), quote(data), quote_plus(data)):
        yield form
        yield "".join(
            f"%{part[:2].lower()}{part[2:]}" if index else part
            for index, part in enumerate(form.split("%"))
        )


def _in_documents(text: str) -> Iterator[str]:
    for ascii_only in (True, False):
        quoted = json.dumps(text, ensure_ascii=ascii_only)[1:-1]
        yield from (quoted, quoted.replace("/", "\\/"))
    yield from (repr(text)[1:-1], ascii(text)[1:-1])
    marked_up = html.escape(text)
    yield from (marked_up, marked_up.replace("&#x27;", "&#39;"))


def _in_base64(data: bytes) -> Iterator[str]:
    """What becomes of `data` anywhere in a text in base64, as in that of `user:password`: all but
    the characters that hold bits of its neighbours too."""
    for before, first in enumerate((0, 2, 3)):
        text = base64.b64encode(bytes(before) + data).decode()
        own = text[first : (before + len(data)) * 8 // 6]
        yield from (own, own.translate(_URL_SAFE))
