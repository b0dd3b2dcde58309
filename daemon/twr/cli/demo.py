"""`twr demo`: see it all work, on this machine alone."""

import os
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from twr.cli.common import new_app

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from signal import Signals

    from anyio import CancelScope

app = new_app()


@app.command()
def demo(
    keep: Annotated[
        bool, typer.Option("--keep", help="Leave it all running afterwards, until Ctrl-C.")
    ] = False,
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
    import signal

    import anyio

    from twr.demo import Stage, keep_running, play

    code = 130
    # Open to the end: a second Ctrl-C must not stop the cleaning up.
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM, signal.SIGHUP) as signals:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_cancel_at_first, signals, tasks.cancel_scope)
            typer.echo("A daemon, a stand-in for Telegram and three services, on this machine:")
            async with Stage() as stage:
                code = 0 if await play(stage, typer.echo, _marks()) else 1
                if keep and not code:
                    await keep_running(stage, typer.echo)
            tasks.cancel_scope.cancel()
    return code


async def _cancel_at_first(signals: "AsyncIterator[Signals]", scope: "CancelScope") -> None:
    async for _ in signals:
        scope.cancel()


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
