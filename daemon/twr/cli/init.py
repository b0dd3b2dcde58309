"""`twr init`: a starter configuration, with fresh secrets in a file of their own."""

import os
import secrets
from pathlib import Path
from typing import Annotated

import typer

from twr.cli.common import new_app
from twr.errors import TwrError

app = new_app()

_CONFIG = """\
# twr, the Telegram webhook router. All keys and defaults: `twr config schema`.
# Validate with `twr check`; a running twr takes changes of this file over by itself.

bot:
  # The URL that Telegram calls; it leads to `listen` and `path` below. Fill it in, then
  # `twr webhook set` registers it and twr watches that it stays so.
  # webhook_url: https://bot.example.com/webhooks/telegram

listen: 127.0.0.1:8080
path: /webhooks/telegram

routes:
  - name: my-service
    target_url: http://127.0.0.1:9000/telegram/updates
    signing_secret_env: MY_SERVICE_SIGNING_SECRET
    # match: without one, the service gets every update
"""

_ENV = """\
# Secrets of twr, read by its systemd unit and by --env-file. Keep this file to yourself.

# From @BotFather. Without it: no probe of the webhook, no `twr webhook` commands.
#BOT_TOKEN=

# What Telegram sends along, so that nobody else can send updates.
TELEGRAM_WEBHOOK_SECRET={webhook}

# With which my-service checks that a delivery comes from twr: give it the same value.
MY_SERVICE_SIGNING_SECRET={signing}
"""


@app.command()
def init(
    config: Annotated[
        Path, typer.Option("-c", "--config", metavar="FILE", help="The configuration to write.")
    ] = Path("twr.yaml"),
    env_file: Annotated[
        Path | None,
        typer.Option(
            "--env-file",
            metavar="FILE",
            help="The environment file to write; twr.env beside the configuration by default.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Write a starter configuration and an environment file with fresh secrets.

    Nothing that exists is overwritten.
    """
    env = env_file or config.with_name("twr.env")
    for path in (config, env):
        if path.exists() or path.is_symlink():
            raise TwrError(f"{path} exists; remove it, or name another file")
    _write(env, _ENV.format(webhook=_secret(), signing=_secret()), 0o600)
    _write(config, _CONFIG, 0o644)
    typer.echo(
        f"wrote {config} and {env}\n"
        f"next: set BOT_TOKEN in {env}, and webhook_url and routes in {config};\n"
        f"then: twr check -c {config} --env-file {env}"
    )


def _secret() -> str:
    return secrets.token_urlsafe(32)


def _make(directory: Path) -> None:
    """Create it where it is missing: the daemon's user has to get in, whatever the umask."""
    if directory.is_dir():
        return
    _make(directory.parent)
    directory.mkdir(exist_ok=True)
    directory.chmod(0o755)


def _write(path: Path, text: str, mode: int) -> None:
    """Create `path`, which nobody but `mode` allows can read at any moment."""
    try:
        _make(path.parent)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    except OSError as error:
        raise TwrError(f"{error.filename} cannot be written: {error.strerror}") from None
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        os.fchmod(descriptor, mode)  # the daemon's user reads the configuration, whatever the umask
        file.write(text)
