"""Secrets: where the file says they are, and their values, which nothing ever shows."""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from twr.config.urls import passwords, proxy_url, store_url, web_url
from twr.errors import ConfigError, Problem

BOT_KEYS = frozenset({"bot.token", "bot.secret_token", "bot.proxy"})
STORE_KEYS = frozenset({"store.url"})
Kind = Literal["env", "file", "text"]
_LARGEST = 64 << 10
_CREDENTIALS = "CREDENTIALS_DIRECTORY"
# How variables are called. Anything else could be the secret itself, put where its name belongs.
_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]*|[a-z]+(_[a-z0-9]+)+", re.ASCII)
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


@dataclass(frozen=True, slots=True)
class Reference:
    """Where the secret `key` is: in each of `names`, the newest first.

    `key` is its place in the file without suffix (`bot.token`; `signing_secret` with a
    `route`), `names` are variables, paths, or the values themselves where a URL stands in
    the file (kind `text`). `otherwise` says what follows where it may be missing.
    """

    key: str
    kind: Kind
    names: tuple[str, ...] = field(repr=False)
    file: str = field(compare=False)
    line: int = field(compare=False)
    route: str | None = None
    otherwise: str = ""

    @property
    def optional(self) -> bool:
        """Whether twr does without it, with a warning."""
        return bool(self.otherwise)

    @property
    def label(self) -> str:
        """How the setting is called in messages."""
        suffix = "" if self.kind == "text" else f"_{self.kind}"
        owner = "" if self.route is None else f"route {self.route}: "
        return f"{owner}{self.key}{suffix}"

    def problem(self, message: str) -> Problem:
        """A fault of this secret, at its line."""
        return Problem(self.file, self.line, f"{self.label}: {message}")


@dataclass(frozen=True, slots=True, repr=False)
class Secrets:
    """Every secret, resolved. `signing` has an entry for each route that has one: the newest
    first; `webhook` are the tokens accepted at the ingress, the newest first.
    """

    bot_token: str | None = None
    webhook: tuple[bytes, ...] = ()
    signing: Mapping[str, tuple[bytes, ...]] = field(default_factory=dict)
    target_tokens: Mapping[str, str] = field(default_factory=dict)
    store_url: str | None = None
    alert_webhook_url: str | None = None
    alert_webhook_headers: Mapping[str, str] = field(default_factory=dict)
    heartbeat_url: str | None = None
    proxy: str | None = None
    warnings: tuple[Problem, ...] = ()
    texts: tuple[str, ...] = ()

    def all(self) -> tuple[str, ...]:
        """The text of every secret, passwords inside URLs too: what `mask` is to hide."""
        return self.texts


def resolve(
    references: Iterable[Reference],
    environ: Mapping[str, str],
    *,
    keys: frozenset[str] | None = None,
    also: Iterable[str] = (),
) -> Secrets:
    """The secrets at `references`, only those whose key is in `keys` where that is given.

    `also` are texts to hide that stand in the file itself. Raises ConfigError with each
    secret that is missing, empty or of the wrong form.
    """
    found: _Found = {}
    hidden: list[str] = list(also)
    warnings: list[Problem] = []
    problems: list[Problem] = []
    for reference in references:
        if keys is not None and reference.key not in keys:
            continue
        try:
            values = _values(reference, environ)
            hidden += _texts(reference, values)
            found[reference.route, reference.key] = values
        except _MissingError as error:
            (warnings if reference.optional else problems).append(reference.problem(str(error)))
        except ValueError as error:
            problems.append(reference.problem(str(error)))
    if problems:
        raise ConfigError(problems)
    return _secrets(found, tuple(warnings), tuple(dict.fromkeys(filter(None, hidden))))


_Found = dict[tuple[str | None, str], tuple[bytes, ...]]


class _MissingError(ValueError):
    """There is no secret, or an empty one."""


def _secrets(found: _Found, warnings: tuple[Problem, ...], texts: tuple[str, ...]) -> Secrets:
    def one(key: str) -> str | None:
        values = found.get((None, key))
        return _decoded(values[0]) if values else None

    def of_routes(key: str) -> dict[str, tuple[bytes, ...]]:
        return {route: values for (route, k), values in found.items() if route and k == key}

    return Secrets(
        bot_token=one("bot.token"),
        webhook=found.get((None, "bot.secret_token"), ()),
        signing=of_routes("signing_secret"),
        target_tokens={r: _decoded(values[0]) for r, values in of_routes("secret_token").items()},
        store_url=one("store.url"),
        alert_webhook_url=one("alerts.webhook.url"),
        alert_webhook_headers=_headers(one("alerts.webhook.headers") or "{}"),
        heartbeat_url=one("alerts.heartbeat_url"),
        proxy=one("bot.proxy"),
        warnings=warnings,
        texts=texts,
    )


def _values(reference: Reference, environ: Mapping[str, str]) -> tuple[bytes, ...]:
    values = tuple(_value(reference, name, environ) for name in reference.names)
    check = _CHECKS.get(reference.key)
    if check is None:
        return values
    for name, value in zip(reference.names, values, strict=True):
        try:
            check(_decoded(value))
        except ValueError as error:
            what = "" if reference.kind == "text" else f"what {name} holds: "
            raise ValueError(f"{what}{error}") from None
    return values


def _value(reference: Reference, name: str, environ: Mapping[str, str]) -> bytes:
    if reference.kind == "text":
        return name.encode()
    if reference.kind == "file":
        return _content(_path(reference, name, environ), named="/" in name)
    if name not in environ:
        known = name if _VARIABLE.fullmatch(name) else "that it names"
        raise _MissingError(f"the variable {known} is not set{reference.otherwise}")
    if not environ[name]:
        raise _MissingError(f"the variable {name} is empty{reference.otherwise}")
    return environ[name].encode(errors="surrogateescape")


def _path(reference: Reference, name: str, environ: Mapping[str, str]) -> Path:
    """Relative paths start at the directory of the configuration, names at the credentials."""
    if "/" in name:
        return Path(reference.file).parent / name
    directory = environ.get(_CREDENTIALS)
    if not directory:
        # Not the name, which could be the secret itself.
        raise ValueError(
            f"a name is looked up in ${_CREDENTIALS}, which is not set;"
            " a path has a slash in it (./name)"
        )
    return Path(directory) / name


def _content(path: Path, *, named: bool) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(_LARGEST + 1)
    except OSError as error:
        shown = path if named else f"the file of that name in ${_CREDENTIALS}"
        raise ValueError(f"{shown} cannot be read: {error.strerror}") from None
    if len(content) > _LARGEST:
        raise ValueError(f"{path} is over 64 KiB: this is no secret")
    content = content.removesuffix(b"\n").removesuffix(b"\r")
    if not content:
        raise ValueError(f"{path} is empty")
    return content


def _texts(reference: Reference, values: tuple[bytes, ...]) -> list[str]:
    """What of a secret must not be shown, in every form in which it could be."""
    texts = [_decoded(value) for value in values]
    hidden = [] if reference.kind == "text" else list(texts)
    if reference.key == "bot.token":
        hidden += [text.partition(":")[2] for text in texts]
    elif reference.key == "alerts.webhook.headers":
        headers = [value for text in texts for value in _headers(text).values()]
        hidden += [part for value in headers for part in (value, value.partition(" ")[2])]
    elif reference.key in _CHECKS and reference.key.endswith(("url", "proxy")):
        hidden += [part for text in texts for part in passwords(text)]
    return hidden


def _decoded(value: bytes) -> str:
    return value.decode(errors="surrogateescape")


def _check_token(text: str) -> None:
    if not re.fullmatch(r"[A-Za-z0-9:_-]+", text):
        raise ValueError("is no bot token; it looks like 123456:ABC-DEF, with nothing around it")


def _check_secret_token(text: str) -> None:
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,256}", text):
        raise ValueError("must be 1 to 256 of A-Z a-z 0-9 _ -")


def _headers(text: str) -> dict[str, str]:
    try:
        headers = json.loads(text)
    except (ValueError, RecursionError):
        headers = None
    if not isinstance(headers, dict) or not all(map(_is_header, headers, headers.values())):
        raise ValueError('must be a JSON object of headers, such as {"Authorization": "Bearer x"}')
    return headers


def _is_header(name: str, value: object) -> bool:
    printable = isinstance(value, str) and value.isprintable() and value.isascii()
    return printable and _HEADER_NAME.fullmatch(name) is not None


_CHECKS: Mapping[str, Callable[[str], object]] = {
    "bot.token": _check_token,
    "bot.secret_token": _check_secret_token,
    "bot.proxy": proxy_url,
    "secret_token": _check_secret_token,
    "store.url": store_url,
    "alerts.webhook.url": web_url,
    "alerts.webhook.headers": _headers,
    "alerts.heartbeat_url": web_url,
}
