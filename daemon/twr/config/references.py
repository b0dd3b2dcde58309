"""Which secrets a configuration names, and where they are."""

from collections.abc import Iterator

from twr.config.document import Document, Key
from twr.config.secrets import Kind, Reference
from twr.config.settings import FileSettings, Section

_DEFAULT_VARIABLES = {
    "bot.token": ("BOT_TOKEN",),
    "bot.secret_token": ("TELEGRAM_WEBHOOK_SECRET",),
}
_WITHOUT = {"bot.token": ": no probe, no webhook commands"}

_Owner = tuple[tuple[Key, ...], Section, tuple[str, ...]]


def references(settings: FileSettings, document: Document) -> Iterator[Reference]:
    """Every secret of the file, and those that are looked for without being named."""
    for path, section, secrets in _owners(settings):
        for secret in secrets:
            yield from _reference(document, path, section, secret)


def _owners(settings: FileSettings) -> Iterator[_Owner]:
    yield ("bot",), settings.bot, ("token", "secret_token", "proxy")
    yield ("store",), settings.store, ("url",)
    yield ("alerts",), settings.alerts, ("heartbeat_url",)
    if settings.alerts.webhook:
        yield ("alerts", "webhook"), settings.alerts.webhook, ("url", "headers")
    for index, route in enumerate(settings.routes):
        yield ("routes", index), route, ("signing_secret", "secret_token")


def _reference(
    document: Document, path: tuple[Key, ...], section: Section, secret: str
) -> Iterator[Reference]:
    route = getattr(section, "name", None) if path[0] == "routes" else None
    key = secret if route else ".".join((*map(str, path), secret))

    def named(kind: Kind, setting: str, names: tuple[str, ...], otherwise: str = "") -> Reference:
        line = document.line(*path, setting)
        return Reference(key, kind, names, document.file, line, route, otherwise)

    if text := getattr(section, secret, None):
        yield named("text", secret, (text,))
    elif paths := getattr(section, f"{secret}_file", None):
        yield named("file", f"{secret}_file", paths)
    elif variables := getattr(section, f"{secret}_env", None) or _DEFAULT_VARIABLES.get(key):
        yield named("env", f"{secret}_env", variables, _WITHOUT.get(key, ""))
