"""Faults of a configuration: what the models found, and what no single value shows.

Rules across several keys look at the plain data, so that a fault elsewhere hides none.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, get_args

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from twr.config import values
from twr.config.document import Document, Key
from twr.config.settings import (
    DEFAULT_API_URL,
    BackoffSettings,
    BreakerSettings,
    FileSettings,
    Section,
)
from twr.config.units import duration, seconds_text
from twr.core.nearest import nearest
from twr.core.text import clip, escape
from twr.core.webhook_url import is_official
from twr.errors import Problem

Path = tuple[Key, ...]
Fault = tuple[Path, str]
_Data = Mapping[str, Any]


def model_problems(document: Document, error: ValidationError) -> Iterator[Problem]:
    """What pydantic found, in words of the file."""
    for details in error.errors(include_url=False, include_input=False):
        path = details["loc"]
        yield document.problem(path, f"{place_name(document.data, path)}{_reason(path, details)}")


def cross_problems(document: Document) -> Iterator[Problem]:
    """What is wrong with how keys go together."""
    for check in _CHECKS:
        for path, message in check(document.data):
            yield document.problem(path, f"{place_name(document.data, path)}{message}")


def place_name(data: _Data, path: Path) -> str:
    """How messages name what is at `path`: `store.url: `, `route shop: match.user_ids: `."""
    if path[:1] == ("routes",) and len(path) > 1:
        name = _route_name(data, path[1])
        return f"route {name}: {_dotted(path[2:])}"
    return _dotted(path)


def _dotted(path: Path) -> str:
    keys = [key for key in path if isinstance(key, str)]
    return f"{clip(escape('.'.join(keys)), 80)}: " if keys else ""


def _route_name(data: _Data, index: Key) -> str:
    name = _mapping(data["routes"][index]).get("name")
    return clip(escape(name), 64) if isinstance(name, str) and name else f"#{int(index) + 1}"


def _reason(path: Path, details: ErrorDetails) -> str:
    kind = details["type"]
    if kind == "extra_forbidden":
        return _unknown(path)
    if kind == "value_error":
        return str(details["ctx"]["error"])
    return {
        "missing": "is missing",
        "model_type": "must hold keys and values",
        "model_attributes_type": "must hold keys and values",
    }.get(kind, details["msg"])


def _unknown(path: Path) -> str:
    key = str(path[-1])
    known = _keys(_section_at(path[:-1]))
    if f"{key}_env" in known:
        return f"a secret never stands in the file; use {key}_env or {key}_file"
    close = nearest(key, known)
    if close is not None:
        return f"no such key; did you mean {close}?"
    homes = [name for name, section in _SECTIONS.items() if key in _keys(section)]
    if homes:
        return f"no such key here; it belongs under {homes[0]}"
    return f"no such key; known here are {', '.join(known)}"


def _keys(section: type[Section]) -> dict[str, Any]:
    return {field.alias or name: field.annotation for name, field in section.model_fields.items()}


def _section_at(path: Path) -> type[Section]:
    section: type[Section] = FileSettings
    for key in path:
        if isinstance(key, str):
            section = _section_in(_keys(section)[key]) or section
    return section


def _section_in(annotation: Any) -> type[Section] | None:
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return annotation
    return next(filter(None, map(_section_in, get_args(annotation))), None)


_SECTIONS = {
    name: section
    for name, annotation in _keys(FileSettings).items()
    if (section := _section_in(annotation)) is not None
}


def _sources(data: _Data) -> Iterator[Fault]:
    """A secret has one source."""
    owners: list[tuple[Path, tuple[str, ...]]] = [
        (("bot",), ("token", "secret_token", "proxy")),
        (("store",), ("url",)),
        (("alerts",), ("heartbeat_url",)),
        (("alerts", "webhook"), ("url", "headers")),
    ]
    owners += [(path, ("signing_secret", "secret_token")) for path, _ in _routes(data)]
    for path, secrets in owners:
        for secret in secrets:
            given = _given(_at(data, path), secret)
            if secret != "url" and secret in given:
                given.remove(secret)  # told as a secret that stands in the file
            if len(given) > 1:
                yield (*path, given[1]), f"stands beside {given[0]}; only one of them can count"


def _needed(data: _Data) -> Iterator[Fault]:
    """Deliveries are signed, or carry the token that a bot framework checks."""
    for path, route in _routes(data):
        if not _given(route, "signing_secret") and not _given(route, "secret_token"):
            yield path, "signing_secret_env or signing_secret_file is missing"
    webhook = _at(data, ("alerts",)).get("webhook")
    if isinstance(webhook, dict) and not _given(webhook, "url"):
        yield ("alerts", "webhook"), "url, url_env or url_file is missing"


def _given(owner: _Data, secret: str) -> list[str]:
    return [key for key in (secret, f"{secret}_env", f"{secret}_file") if key in owner]


def _names(data: _Data) -> Iterator[Fault]:
    seen: set[str] = set()
    for path, route in _routes(data):
        name = route.get("name")
        if isinstance(name, str) and name in seen:
            yield (*path, "name"), "another route above has this name"
        elif isinstance(name, str):
            seen.add(name)


def _excepts(data: _Data) -> Iterator[Fault]:
    for path, route in _routes(data):
        if "except" in route and route["except"] in (None, {}):
            yield (*path, "except"), "is empty, and so would skip every update; leave it out"


def _listeners(data: _Data) -> Iterator[Fault]:
    listen = _read(values.listen, data.get("listen", "127.0.0.1:8080"))
    admin = _read(values.listen, data.get("admin", "127.0.0.1:8081"))
    if listen is not None and listen == admin and listen.port != 0:
        yield ("admin",) if "admin" in data else ("listen",), "listen and admin are the same"


def _webhook_url(data: _Data) -> Iterator[Fault]:
    bot = _at(data, ("bot",))
    url = bot.get("webhook_url")
    official = _read(is_official, bot.get("api_url", DEFAULT_API_URL))
    if official and isinstance(url, str) and url.startswith("http://"):
        yield (
            ("bot", "webhook_url"),
            "Telegram takes only https:// (a Bot API server of your own, api_url, takes http://)",
        )


def _limits(data: _Data) -> Iterator[Fault]:
    """A first value may not exceed the largest, whichever of both a route inherits."""
    defaults = _at(data, ("delivery",))
    for path, owner in [(("delivery",), defaults), *_routes(data)]:
        for section, least, most, model in _ORDERED:
            given = _mapping(owner.get(section))
            if given:
                merged = {**_mapping(defaults.get(section)), **given}
                low, high = (_seconds(merged, key, model) for key in (least, most))
                if low is not None and high is not None and low > high:
                    yield _contradiction((*path, section), given, (least, low), (most, high))


def _contradiction(
    path: Path, given: _Data, least: tuple[str, float], most: tuple[str, float]
) -> Fault:
    """Told at the key that stands there, the other being inherited."""
    if most[0] in given:
        return (*path, most[0]), f"is below {least[0]} ({seconds_text(least[1])})"
    return (*path, least[0]), f"is above {most[0]} ({seconds_text(most[1])})"


_ORDERED: tuple[tuple[str, str, str, type[Section]], ...] = (
    ("backoff", "first", "max", BackoffSettings),
    ("breaker", "cooldown", "max_cooldown", BreakerSettings),
)


def _seconds(merged: _Data, key: str, model: type[Section]) -> float | None:
    seconds: float | None = _read(duration, merged.get(key, model.model_fields[key].default))
    return seconds


_CHECKS: tuple[Callable[[_Data], Iterable[Fault]], ...] = (
    _sources,
    _needed,
    _names,
    _excepts,
    _listeners,
    _webhook_url,
    _limits,
)


def _read(reader: Callable[[Any], Any], value: Any) -> Any:
    try:
        return reader(value)
    except (ValueError, TypeError, AttributeError):  # told where the value itself is read
        return None


def _mapping(value: Any) -> _Data:
    return value if isinstance(value, dict) else {}


def _at(data: _Data, path: Path) -> _Data:
    found: Any = data
    for key in path:
        found = found[key] if isinstance(key, int) else _mapping(found).get(key)
    return _mapping(found)


def _routes(data: _Data) -> list[tuple[Path, _Data]]:
    routes = data.get("routes")
    if not isinstance(routes, tuple):
        return []
    return [(("routes", i), route) for i, route in enumerate(routes) if isinstance(route, dict)]
