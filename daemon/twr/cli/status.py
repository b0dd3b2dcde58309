"""`twr status`: the webhook, the store, the queues and the alerts at a glance."""

import contextlib
import sys
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from twr.cli.common import ConfigOption, EnvFileOption, JsonOption, new_app, open_config, print_json
from twr.errors import DaemonUnreachable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from twr.cli.overview import Rates, Sample
    from twr.config import Listen

app = new_app()

_EVERY = 2.0
_CLEAR = "\x1b[H\x1b[J"


@app.command()
def status(
    config: ConfigOption = None,
    env_file: EnvFileOption = None,
    as_json: JsonOption = False,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Again every 2 seconds, until Ctrl-C.")
    ] = False,
) -> None:
    """Show the webhook, the store, each route's queues and the alerts of the running twr.

    It is asked at the `admin` listener of the configuration. --json prints what GET /status
    answers, with --watch an object on each line.
    """
    loaded, _ = open_config(config, env_file)
    answers = _answers(loaded.admin)
    if watch:
        with contextlib.suppress(KeyboardInterrupt):
            _watch(answers, as_json=as_json)
        return
    found = next(answers)
    if as_json:
        print_json(found)
    else:
        typer.echo(_screen(found))


def _answers(admin: "Listen") -> "Iterator[dict[str, Any]]":
    """The status now, and then every two seconds; empty while twr is away, as in a restart.

    Raises DaemonUnreachable when it is away to begin with.
    """
    from twr.edges.admin_client import fetch_status

    yield fetch_status(admin)
    while True:
        time.sleep(_EVERY)
        try:
            yield fetch_status(admin)
        except DaemonUnreachable as error:
            typer.echo(str(error), err=True)
            yield {}


def _watch(answers: "Iterator[dict[str, Any]]", *, as_json: bool) -> None:
    from twr.cli.overview import rates, sample

    before: Sample | None = None
    for found in filter(None, answers):
        if as_json:
            print_json(found)
            continue
        latest = sample(found, time.monotonic())
        start = _CLEAR if sys.stdout.isatty() else "\n" if before else ""
        typer.echo(start + _screen(found, rates(before, latest) if before else {}))
        before = latest


def _screen(status: dict[str, Any], rates: "Rates | None" = None) -> str:
    from twr.cli.overview import lines

    return "\n".join(lines(status, time.time(), rates))
