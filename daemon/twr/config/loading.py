"""From a file to a Config: read, check, fill in the defaults."""

import os
import re
import socket
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar, cast

from pydantic import ValidationError

from twr.config import model
from twr.config.advice import warnings_of
from twr.config.checks import cross_problems, model_problems
from twr.config.document import Document, read
from twr.config.references import references
from twr.config.settings import (
    DeliverySettings,
    FileSettings,
    MatchSettings,
    RouteSettings,
    Section,
)
from twr.core.backoff import Backoff
from twr.core.breaker import BreakerPolicy
from twr.core.matching import Match, Rule
from twr.errors import ConfigError, Problem

DEFAULT_FILE = Path("/etc/twr/twr.yaml")
_SYSTEM_STATE = Path("/var/lib/twr")


def find_config(option: Path | None, environ: Mapping[str, str]) -> Path:
    """The file to read: `option`, $TWR_CONFIG, /etc/twr/twr.yaml or ./twr.yaml.

    Raises ConfigError where none of the last two exists.
    """
    if option is not None:
        return option
    if environ.get("TWR_CONFIG"):
        return Path(environ["TWR_CONFIG"])
    local = Path("twr.yaml")
    for candidate in (DEFAULT_FILE, local):
        if candidate.exists():
            return candidate
    message = f"no configuration here or at {DEFAULT_FILE}; `twr init` writes one, -c names another"
    raise ConfigError([Problem(str(local), 0, message)])


def load(path: Path, environ: Mapping[str, str] | None = None) -> model.Config:
    """The configuration in the file at `path`.

    `environ` (the process's own by default) decides where the embedded store lives unless
    the file says so; no secret is read. Raises ConfigError with all problems of the file.
    """
    document = read(path)
    settings, problems = _validated(document)
    if settings is None or problems:
        raise ConfigError(problems)
    return _config(settings, document, os.environ if environ is None else environ)


def _validated(document: Document) -> tuple[FileSettings | None, list[Problem]]:
    problems = list(document.problems)
    lines = {problem.line for problem in problems}
    settings = None
    try:
        settings = FileSettings.model_validate(document.data)
    except ValidationError as error:
        # What the document itself could not read is missing from its data: one fault, not two.
        problems += [p for p in model_problems(document, error) if p.line not in lines]
    problems += cross_problems(document)
    return settings, list(dict.fromkeys(problems))


_IN_ORDER = ("start_prefixes", "callback_prefixes")
_S = TypeVar("_S", bound=Section)


def _config(settings: FileSettings, document: Document, environ: Mapping[str, str]) -> model.Config:
    config = model.Config(
        file=Path(document.file),
        bot=_bot(settings),
        listen=settings.listen,
        path=settings.path,
        max_body=settings.max_body,
        trusted_networks=_flat(settings.trusted_networks),
        trusted_proxies=_flat(settings.trusted_proxies) or (),
        admin=settings.admin,
        socket_mode=settings.socket_mode,
        socket_group=settings.socket_group,
        store=_store(settings, Path(document.file), environ),
        instance=settings.instance or _host_name(),
        shutdown_grace=settings.shutdown_grace,
        dead_letters=model.DeadLetters(**dict(settings.dead_letters)),
        probe=model.Probe(**dict(settings.probe)),
        alerts=_alerts(settings),
        routes=tuple(_route(route, settings.delivery) for route in settings.routes),
        references=tuple(references(settings, document)),
        content=document.content,
        place=document.place,
    )
    return replace(config, warnings=tuple(warnings_of(config, document)))


def _bot(settings: FileSettings) -> model.Bot:
    bot = settings.bot
    return model.Bot(
        name=bot.name,
        username=bot.username,
        api_url=bot.api_url.rstrip("/"),
        webhook_url=bot.webhook_url,
        allowed_updates=cast("Any", bot.allowed_updates),
        max_connections=bot.max_connections,
    )


def _store(settings: FileSettings, file: Path, environ: Mapping[str, str]) -> model.StoreConfig:
    store = settings.store
    variable = f"${store.url_env[0]}" if store.url_env else None
    return model.StoreConfig(
        url=store.url,
        url_from=variable or (store.url_file[0] if store.url_file else None),
        dir=_state_directory(store.dir, file, environ),
        max_memory=store.max_memory,
        prefix=store.prefix,
        dedup_ttl=store.dedup_ttl,
    )


def _state_directory(given: str | None, file: Path, environ: Mapping[str, str]) -> Path:
    home = Path(environ.get("HOME") or os.path.expanduser("~"))
    if given is not None and given.startswith("~/"):
        return home / given[2:]
    if given is not None:
        return (file.parent / given).absolute()
    if environ.get("STATE_DIRECTORY"):
        return Path(environ["STATE_DIRECTORY"].split(":")[0])
    return _SYSTEM_STATE if _SYSTEM_STATE.is_dir() else home / ".local/state/twr"


def _host_name() -> str:
    return re.sub(r"[^A-Za-z0-9_.-]", "-", socket.gethostname())[:64] or "twr"


def _flat(networks: tuple[Any, ...] | None) -> Any:
    """The networks of all entries; each entry is read as a tuple of them."""
    return None if networks is None else tuple(one for entry in networks for one in entry)


def _alerts(settings: FileSettings) -> model.Alerts:
    alerts = settings.alerts
    return model.Alerts(
        repeat=alerts.repeat,
        backlog=alerts.backlog,
        telegram=model.TelegramSink(**dict(alerts.telegram)) if alerts.telegram else None,
        webhook=alerts.webhook is not None,
        heartbeat=bool(alerts.heartbeat_url_env or alerts.heartbeat_url_file),
    )


def _route(route: RouteSettings, defaults: DeliverySettings) -> model.Route:
    delivery = _merged(defaults, route)
    return model.Route(
        name=route.name,
        target_url=route.target_url,
        rule=Rule(
            name=route.name,
            match=_match(route.match),
            exclude=_match(route.except_) if route.except_ else None,
            fallback=route.fallback,
        ),
        timeout=delivery.timeout,
        concurrency=delivery.concurrency,
        order=cast("Any", delivery.order),
        max_attempts=delivery.max_attempts,
        backoff=Backoff(**dict(_merged(defaults.backoff, delivery.backoff))),
        permanent_statuses=frozenset(delivery.permanent_statuses),
        max_pending=delivery.max_pending,
        breaker=BreakerPolicy(**dict(_merged(defaults.breaker, delivery.breaker))),
    )


def _merged(defaults: _S, own: Section) -> _S:
    """`defaults` with what `own` sets itself."""
    own_keys = own.model_fields_set & type(defaults).model_fields.keys()
    return defaults.model_copy(update={key: getattr(own, key) for key in own_keys})


def _match(settings: MatchSettings) -> Match:
    conditions: dict[str, Any] = {
        key: values if key in _IN_ORDER else frozenset(values)
        for key, values in settings
        if values is not None
    }
    return Match(**conditions)
