"""What is valid and yet probably not meant."""

import ipaddress
from collections.abc import Iterator

from twr.config.checks import Path, place_name
from twr.config.document import Document
from twr.config.model import Config, Listen
from twr.config.urls import passwords
from twr.core.matching import Match
from twr.core.nearest import nearest
from twr.core.update import COMMAND_TYPES, TYPES
from twr.errors import Problem

_Advice = Iterator[tuple[Path, str]]


def warnings_of(config: Config, document: Document) -> Iterator[Problem]:
    """One Problem for each thing that works, but hardly as it was meant."""
    for advise in (_reach, _passwords, _types, _conditions):
        for path, message in advise(config, document):
            yield document.problem(path, f"{place_name(document.data, path)}{message}")


def _reach(config: Config, document: Document) -> _Advice:
    if not _is_local(config.admin):
        yield ("admin",), "not a loopback address: whoever reaches it reads status and metrics"
    if config.trusted_networks == ():
        yield (
            ("trusted_networks",),
            "an empty list lets everyone in; name some, or leave it out",
        )


def _is_local(listen: Listen) -> bool:
    if listen.path is not None or listen.host == "localhost":
        return True
    try:
        return ipaddress.ip_address(listen.host or "").is_loopback
    except ValueError:
        return False


def _passwords(config: Config, document: Document) -> _Advice:
    if config.store.url is not None and passwords(config.store.url):
        yield ("store", "url"), "holds a password; url_env takes the whole URL from a variable"


def _types(config: Config, document: Document) -> _Advice:
    """Names that Telegram may not know, and types that a route waits for in vain."""
    allowed = config.bot.allowed_updates
    asked = None if allowed == "auto" else allowed
    for name in asked or ():
        if name not in TYPES:
            yield ("bot", "allowed_updates"), _unknown(name)
    for index in range(len(config.routes)):
        for key in ("match", "except"):
            yield from _types_of(document, ("routes", index, key, "update_types"), asked)


def _types_of(document: Document, path: Path, asked: tuple[str, ...] | None) -> _Advice:
    _, index, key, _ = path
    match = document.data["routes"][index].get(key) or {}
    for position, name in enumerate(match.get("update_types", ())):
        if name not in TYPES:
            yield (*path, position), _unknown(name)
        elif asked is not None and name not in asked and key == "match":
            yield (*path, position), f"{name} is left out of bot.allowed_updates"


def _unknown(name: str) -> str:
    close = nearest(name, TYPES)
    return f'no update type "{name}" is known' + (f"; did you mean {close}?" if close else "")


def _conditions(config: Config, document: Document) -> _Advice:
    for index, route in enumerate(config.routes):
        if _never(route.rule.match):
            yield (
                ("routes", index, "match"),
                "no update meets all of these (conditions are joined by AND); make it two routes",
            )


def _never(match: Match) -> bool:
    """Commands are in messages, callback data in callback queries, and an update is but one."""
    possible = set(match.update_types or TYPES)
    if match.commands is not None or match.start_prefixes is not None:
        possible &= set(COMMAND_TYPES)
    if match.callback_prefixes is not None:
        possible &= {"callback_query"}
    return not possible
