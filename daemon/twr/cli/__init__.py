"""The command line: a table of commands, each imported only when it is called."""

import os
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from twr.cli.common import new_app
from twr.errors import TwrError

# Name, module in this package (with a Typer called `app`), one line of help.
COMMANDS = (
    ("run", "run", "Run the daemon."),
    ("check", "check", "Validate the configuration."),
    ("status", "status", "Show the webhook, the store, the queues and the alerts."),
    ("routes", "routes", "List the routes, test updates against them, move waiting work."),
    ("webhook", "webhook", "Show, set or remove the webhook at Telegram."),
    ("dlq", "dlq", "List, show, replay and drop dead letters."),
    ("config", "config_schema", "Print the JSON schema of the configuration."),
    ("init", "init", "Write a starter configuration with fresh secrets."),
    ("demo", "demo", "Show it all at work, on this machine alone."),
)

_PACKAGE = Path(__file__).parents[1]


class Commands(TyperGroup):
    """Lists what the table says and imports the module of the one that is called."""

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        name, command, rest = super().resolve_command(ctx, args)
        modules = {row[0]: row[1] for row in COMMANDS}
        if name not in modules:
            return name, command, rest
        module = import_module(f"twr.cli.{modules[name]}")
        return name, typer.main.get_command(module.app), rest


app = new_app(cls=Commands, add_completion=True)


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Show the version.")] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show tracebacks; may stand anywhere.")
    ] = False,
) -> None:
    """A Telegram webhook router: one public webhook, several services behind it."""
    if version:
        from twr import __version__

        typer.echo(f"twr {__version__}")
    elif context.invoked_subcommand is None:
        typer.echo(context.get_help())


def _described() -> None:
    """Stands in the table's place until the command is called."""


for _name, _, _help in COMMANDS:
    app.command(_name, help=_help)(_described)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command and exit with its code: every error is one line on standard error.

    The codes are those of `twr.errors`; 2 for wrong usage, 130 after Ctrl-C.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in given
    sys.exit(_run([word for word in given if word != "--debug"], debug))


def _run(arguments: list[str], debug: bool) -> int:
    try:
        code = app(args=arguments, prog_name="twr", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except BrokenPipeError:
        _discard_output()
        return 1
    except (KeyboardInterrupt, typer.Abort):
        return 130
    except Exception as error:
        if debug:
            traceback.print_exc()
        return _report(error)


def _report(error: Exception) -> int:
    """Say what is wrong in one line for each fault; the code to exit with."""
    if isinstance(error, TwrError):
        text, code = str(error), error.exit_code
    elif hasattr(error, "format_message"):  # how typer itself refuses a command line
        command = getattr(getattr(error, "ctx", None), "command_path", "twr")
        text, code = f"{command}: {error.format_message()}", getattr(error, "exit_code", 2)
    else:
        text, code = f"{_bug(error)}: a bug (--debug shows more)", 1
    typer.echo(text, err=True)
    return code


def _bug(error: Exception) -> str:
    """Its kind and where it arose. Its own text may hold anything, a secret too."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [it for it in frames if _PACKAGE in Path(it.filename).parents]
    where = f" in {Path(ours[-1].filename).relative_to(_PACKAGE)}:{ours[-1].lineno}" if ours else ""
    return f"{type(error).__name__}{where}"


def _discard_output() -> None:
    """Nobody reads any more; the interpreter must not find that out once again at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
