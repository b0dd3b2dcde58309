"""`twr config schema`: the JSON schema of the YAML."""

import json

import typer

from twr.cli.common import UnreadConfigOption, new_app

app = new_app()


@app.callback()
def config() -> None:
    """What there is to know of the configuration."""


@app.command("schema")
def print_schema(_config: UnreadConfigOption = None) -> None:
    """Print the JSON schema of twr.yaml, for editors and other tools."""
    from twr.config import schema

    typer.echo(json.dumps(schema(), indent=2, ensure_ascii=False))
