"""`twr demo`: see it all work, on this machine alone."""

import os
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from twr.cli.common import UnreadConfigOption, new_app

if TYPE_CHECKING:
    from collections.abc import Callable

app = new_app()


@app.command()
def demo(
    keep: Annotated[
        bool, typer.Option("--keep", help="Leave it all running afterwards, until Ctrl-C.")
    ] = False,
    _config: UnreadConfigOption = None,
) -> None:
    """Show what twr does: needs no bot, no network, no Redis.

    Starts a real daemon, a stand-in for Telegram and three services, and checks each step.
    Exits 0 when all held, 1 with the step that did not.
    """
    import anyio

    code = anyio.run(_demo, keep)
    if code:
        raise typer.Exit(code)


async def _demo(keep: bool) -> int:
    """Play it, and clean up whatever happens; the exit code."""
    import asyncio
    import signal

    import anyio

    from twr.demo import Stage, keep_running, play

    code = 130
    with anyio.CancelScope() as scope:
        # To the end: a second Ctrl-C must not stop the cleaning up.
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(number, scope.cancel)
        typer.echo("A daemon, a stand-in for Telegram and three services, on this machine:")
        async with Stage() as stage:
            code = 0 if await play(stage, typer.echo, _marks()) else 1
            if keep and not code:
                await keep_running(stage, typer.echo)
    return code


def _marks() -> "Callable[[bool], str]":
    """Ticks and crosses: in colour only on a terminal, in letters where there is nothing else."""
    plain = not sys.stdout.isatty() or bool(os.environ.get("NO_COLOR"))
    try:
        "✓✗".encode(sys.stdout.encoding or "ascii")
        marks = "✗✓"
    except UnicodeEncodeError:
        marks = "x+"

    def mark(good: bool) -> str:
        return marks[good] if plain else typer.style(marks[good], fg="green" if good else "red")

    return mark
