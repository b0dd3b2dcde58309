"""`twr check`: whether the configuration is valid."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from twr.cli.common import (
    ConfigOption,
    EnvFileOption,
    JsonOption,
    environment,
    new_app,
    print_json,
    warn,
)
from twr.errors import ConfigError, Problem

if TYPE_CHECKING:
    from twr.config import Config

app = new_app()


@app.command()
def check(
    config: ConfigOption = None, env_file: EnvFileOption = None, as_json: JsonOption = False
) -> None:
    """Validate the configuration: exit 0, or 78 with every error as `file:line: message`.

    With --env-file the secrets are looked up too, with nothing but that file beside the
    environment. Warnings go to standard error and do not count.

    --json prints {"file": …, "ok": true, "routes": [names], "secrets_checked": false,
    "errors": [{"file": …, "line": 1, "message": …}], "warnings": [the same]}.
    """
    from twr.config import find_config, load

    file: Path | None = None
    loaded: Config | None = None
    asked = env_file is not None
    try:
        environ = environment(env_file)
        file = find_config(config, environ)
        loaded = load(file, environ)
        warnings = (*loaded.warnings, *(loaded.secrets(environ).warnings if asked else ()))
    except ConfigError as error:
        if not as_json:
            raise
        print_json(_result(file, None, error.problems, (), secrets=asked and loaded is not None))
        raise typer.Exit(error.exit_code) from None
    if as_json:
        print_json(_result(file, loaded, (), warnings, secrets=asked))
        return
    for problem in warnings:
        warn(problem)
    typer.echo(_summary(loaded, with_secrets=asked))


def _summary(config: "Config", *, with_secrets: bool) -> str:
    count = len(config.routes)
    return (
        f"{config.file}: ok: {count} {'route' if count == 1 else 'routes'},"
        f" listen {config.listen}, store {config.store},"
        f" secrets {'found' if with_secrets else 'not looked up (--env-file FILE does)'}"
    )


def _result(
    file: Path | None,
    config: "Config | None",
    errors: tuple[Problem, ...],
    warnings: tuple[Problem, ...],
    *,
    secrets: bool,
) -> dict[str, Any]:
    return {
        "file": None if file is None else str(file),
        "ok": not errors,
        "routes": [route.name for route in config.routes] if config else [],
        "secrets_checked": secrets,
        "errors": [_problem(problem) for problem in errors],
        "warnings": [_problem(problem) for problem in warnings],
    }


def _problem(problem: Problem) -> dict[str, Any]:
    return {"file": problem.file, "line": problem.line, "message": problem.message}
