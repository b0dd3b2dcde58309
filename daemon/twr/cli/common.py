"""What commands share: their options, and how they come to a configuration."""

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from twr.config import Config
    from twr.errors import Problem

ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "-c",
        "--config",
        metavar="FILE",
        help="The configuration; else $TWR_CONFIG, /etc/twr/twr.yaml or ./twr.yaml.",
        show_default=False,
    ),
]
# Every command takes the option, so that it can stand in an alias; these have no use for it.
UnreadConfigOption = Annotated[Path | None, typer.Option("-c", "--config", hidden=True)]
EnvFileOption = Annotated[
    Path | None,
    typer.Option(
        "--env-file",
        metavar="FILE",
        help="Variables to add to the environment, as in a systemd unit's EnvironmentFile.",
        show_default=False,
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def new_app(*, add_completion: bool = False, **options: Any) -> typer.Typer:
    """An empty app of the house's make: help in plain text, errors left to `twr.cli.main`."""
    return typer.Typer(
        add_completion=add_completion,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
        **options,
    )


def environment(env_file: Path | None) -> dict[str, str]:
    """The process's environment, and over it the variables of `env_file`. Raises ConfigError."""
    if env_file is None:
        return dict(os.environ)
    from twr import config

    return {**os.environ, **config.env_file(env_file)}


def open_config(option: Path | None, env_file: Path | None) -> tuple["Config", dict[str, str]]:
    """The configuration that the options name, and the environment for its secrets.

    Raises ConfigError.
    """
    from twr import config

    environ = environment(env_file)
    return config.load(config.find_config(option, environ), environ), environ


def warn(problem: "Problem") -> None:
    """One line on standard error for something that is no error."""
    place, _, message = str(problem).partition(": ")
    typer.echo(f"{place}: warning: {message}", err=True)


def print_json(value: Any) -> None:
    """One line of JSON on standard output."""
    typer.echo(json.dumps(value, ensure_ascii=False))
