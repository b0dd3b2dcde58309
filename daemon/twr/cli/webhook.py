"""`twr webhook info|set|delete`: the webhook that Telegram holds for the bot."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from twr.cli.common import (
    ConfigOption,
    EnvFileOption,
    JsonOption,
    new_app,
    open_config,
    print_json,
    warn,
)

if TYPE_CHECKING:
    from twr.config import Config, Secrets
    from twr.core.clock import Clock
    from twr.core.masking import Mask
    from twr.edges.telegram import Telegram

app = new_app()

T = TypeVar("T")

DropOption = Annotated[
    bool, typer.Option("--drop-pending", help="Throw away the updates that are waiting.")
]


@app.callback()
def webhook() -> None:
    """Show, set or remove the webhook that Telegram holds for the bot."""


@app.command()
def info(
    config: ConfigOption = None, env_file: EnvFileOption = None, as_json: JsonOption = False
) -> None:
    """Show the webhook as Telegram has it.

    --json prints one object: the fields of getWebhookInfo by their own names (null where
    Telegram tells none), `expected` (bot.webhook_url) and `matches`.
    """
    from time import time

    from twr.services import webhook as service

    loaded, secrets = _opened(config, env_file)
    told = _ask(loaded, secrets, lambda bot: bot.get_webhook_info())
    mask = _mask(secrets)
    if as_json:
        found = service.as_json(told, loaded.bot.webhook_url)
        print_json({k: mask(it) if isinstance(it, str) else it for k, it in found.items()})
        return
    for line in service.lines(told, time()):
        typer.echo(mask(line))
    hint = service.drift_hint(told, loaded.bot.webhook_url)
    if hint is not None:
        typer.echo(mask(hint))


@app.command("set")
def set_webhook(
    config: ConfigOption = None,
    env_file: EnvFileOption = None,
    drop_pending: DropOption = False,
    wait: Annotated[
        str,
        typer.Option(metavar="DURATION", help="How long to watch the waiting updates at most."),
    ] = "30s",
    no_wait: Annotated[bool, typer.Option("--no-wait", help="Do not watch them.")] = False,
) -> None:
    """Register bot.webhook_url, the secret, the update types and max_connections.

    Shows what was and what is, and watches until the updates that wait have been delivered.
    Exits 1 when they do not become fewer.
    """
    from twr.edges.front import knock
    from twr.services import webhook as service

    seconds = 0.0 if no_wait else _duration(wait)
    loaded, secrets = _opened(config, env_file)
    order = service.order(loaded, drop_pending=drop_pending)
    secret = service.newest_secret(loaded, secrets)

    async def register(bot: "Telegram") -> bool:
        return await service.register(
            bot, order, secret, say=_say(secrets), knock=knock, clock=_clock(), wait=seconds
        )

    if not _ask(loaded, secrets, register):
        raise typer.Exit(1)


@app.command()
def delete(
    config: ConfigOption = None, env_file: EnvFileOption = None, drop_pending: DropOption = False
) -> None:
    """Remove the webhook: Telegram keeps the updates for up to 24 hours."""
    from twr.services import webhook as service

    loaded, secrets = _opened(config, env_file)

    async def remove(bot: "Telegram") -> bool:
        say = _say(secrets)
        return await service.remove(bot, drop_pending=drop_pending, say=say, clock=_clock())

    if not _ask(loaded, secrets, remove):
        raise typer.Exit(1)


def _opened(option: Path | None, env_file: Path | None) -> tuple["Config", "Secrets"]:
    config, environ = open_config(option, env_file)
    secrets = config.bot_secrets(environ)
    for problem in secrets.warnings:
        warn(problem)
    return config, secrets


def _ask(config: "Config", secrets: "Secrets", question: Callable[["Telegram"], Awaitable[T]]) -> T:
    import anyio

    from twr.edges.telegram import Telegram
    from twr.services.webhook import bot_token

    token = bot_token(config, secrets)

    mask = _mask(secrets)

    async def ask() -> T:
        async with Telegram(
            config.bot.api_url, token, proxy=secrets.proxy, mask=lambda: mask
        ) as bot:
            return await question(bot)

    return anyio.run(ask)


def _mask(secrets: "Secrets") -> "Mask":
    from twr.core.masking import Mask

    return Mask(secrets.all())


def _say(secrets: "Secrets") -> Callable[[str], None]:
    """A webhook URL may hold the bot token."""
    mask = _mask(secrets)
    return lambda line: typer.echo(mask(line))


def _clock() -> "Clock":
    import time

    from twr.core.clock import Clock

    return Clock(time.time, time.monotonic)


def _duration(text: str) -> float:
    from twr.config.units import duration

    try:
        return duration(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--wait") from None
