"""`twr dlq`: the dead letters, to be read, replayed or dropped."""

import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from twr.cli.common import ConfigOption, EnvFileOption, JsonOption, new_app, open_config, print_json
from twr.cli.completion import route_names
from twr.errors import StoreError, TwrError, UsageError

if TYPE_CHECKING:
    from twr.cli.letters import Tally
    from twr.config import Config
    from twr.core.jobs import Stats
    from twr.edges.store import Store
    from twr.services.dead_letters import Outcome, Selection

app = new_app()

# What a terminal shows unless told otherwise.
_SCREENFUL = 100

IdsArgument = Annotated[
    list[str] | None, typer.Argument(metavar="ID...", help="<update_id>/<route>, as listed.")
]
RouteOption = Annotated[
    list[str] | None,
    typer.Option(
        "--route", metavar="ROUTE", help="Those of this route.", autocompletion=route_names
    ),
]
ReasonOption = Annotated[
    list[str] | None,
    typer.Option(
        "--reason", metavar="REASON", help="attempts, permanent, expired, poison or overflow."
    ),
]
LimitOption = Annotated[
    int | None,
    typer.Option("--limit", metavar="N", min=1, help="At most so many of them, the oldest first."),
]
AllOption = Annotated[bool, typer.Option("--all", help="All of them.")]

Work = Callable[["Store", "Stats"], Awaitable[None]]


@app.callback()
def dlq() -> None:
    """List, show, replay and drop dead letters: deliveries that were given up."""


@app.command("list")
def list_letters(
    route: RouteOption = None,
    reason: ReasonOption = None,
    limit: LimitOption = None,
    everything: AllOption = False,
    config: ConfigOption = None,
    env_file: EnvFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """List dead letters, the oldest first; on a terminal only 100 unless --limit or --all.

    --json prints an object on each line: {"id", "update_id", "route", "reason", "attempts",
    "last_status", "last_error", "accepted_at", "died_at"}.
    """
    from twr.services import dead_letters as service

    if limit is None and not everything and not as_json and sys.stdout.isatty():
        limit = _SCREENFUL
    chosen = service.Selection(
        routes=frozenset(route or ()), reasons=frozenset(reason or ()), limit=limit
    )
    loaded, environ = open_config(config, env_file)

    async def work(store: "Store", stats: "Stats") -> None:
        service.check(chosen, _names(loaded), stats)
        shown = await _print(service.select(store.dead_letters, chosen, stats), stats, as_json)
        _footer(shown, chosen.count(stats), as_json)

    _with_store(loaded, environ, env_file, work)


async def _print(pages: AsyncIterator[list[Any]], stats: "Stats", as_json: bool) -> int:
    import json

    from twr.cli import letters
    from twr.cli.tables import terminal_width

    table = letters.Table(stats.now_ms, terminal_width())
    shown = 0
    async for page in pages:
        shown += len(page)
        letters.echo_lines(
            (json.dumps(letters.as_json(letter), ensure_ascii=False) for letter in page)
            if as_json
            else table.lines(page)
        )
    return shown


def _footer(shown: int, total: int, as_json: bool) -> None:
    if as_json:
        return
    if not shown:
        typer.echo("no dead letters", err=True)
    elif shown < total:
        typer.echo(f"{shown} of {total} dead letters; --all lists the rest", err=True)


@app.command()
def show(
    job_id: Annotated[str, typer.Argument(metavar="ID", help="<update_id>/<route>, as listed.")],
    body: Annotated[
        bool, typer.Option("--body", help="Print the update alone, byte for byte as it came.")
    ] = False,
    config: ConfigOption = None,
    env_file: EnvFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show a dead letter: what happened, what the target answered, and the update.

    --json prints the object of `list --json` with "type", "answer" and "body" (the update) besides.
    """
    from twr.services import dead_letters as service

    if body and as_json:
        raise UsageError("--body and --json exclude each other")
    loaded, environ = open_config(config, env_file)

    async def work(store: "Store", stats: "Stats") -> None:
        from twr.cli import letters

        service.check(service.Selection((job_id,)), (), stats)
        known = service.known_routes(_names(loaded), stats)
        letter = await service.find(store.dead_letters, job_id, known)
        if body:
            sys.stdout.buffer.write(letter.body or b"")
        elif as_json:
            typer.echo(letters.whole_as_json(letter))
        else:
            letters.echo_lines(letters.whole(letter, stats.now_ms))

    _with_store(loaded, environ, env_file, work)


@app.command()
def replay(
    ids: IdsArgument = None,
    route: RouteOption = None,
    reason: ReasonOption = None,
    everything: AllOption = False,
    limit: LimitOption = None,
    to: Annotated[
        str | None,
        typer.Option(
            "--to",
            metavar="ROUTE",
            help="Deliver them to another route, as after a rename.",
            autocompletion=route_names,
        ),
    ] = None,
    config: ConfigOption = None,
    env_file: EnvFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Deliver dead letters anew: no attempts, no expiry, at the end of their lane.

    Exits 1 when some could not be replayed. --json prints {"id", "result", "to"} on each
    line, with replayed, missing, taken (that route already has the update) or no_route.
    """
    from twr.services import dead_letters as service

    chosen = _selection(ids, route, reason, everything, limit)
    loaded, environ = open_config(config, env_file)
    ordered = {it.name: it.order == "chat" for it in loaded.routes}
    if to is not None:
        service.require(to, ordered, f"{loaded.file} has no route")

    async def work(store: "Store", stats: "Stats") -> None:
        service.check(chosen, ordered, stats)
        if to is None:
            for name in sorted(chosen.routes):
                service.require(name, ordered, f"--to ROUTE is needed: {loaded.file} has no route")
        await _insist(store, chosen, service.known_routes(ordered, stats), as_json)
        outcomes = service.replay(store.dead_letters, chosen, stats, ordered=ordered, to=to)
        await _carry_out(outcomes, _total(chosen, stats), loaded, "replayed", as_json)

    _with_store(loaded, environ, env_file, work)


@app.command()
def drop(
    ids: IdsArgument = None,
    route: RouteOption = None,
    reason: ReasonOption = None,
    everything: AllOption = False,
    limit: LimitOption = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask with --all.")] = False,
    config: ConfigOption = None,
    env_file: EnvFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Delete dead letters for good. At a terminal --all asks first.

    Exits 1 when some were not there. --json prints {"id", "result"} on each line, with
    dropped or missing.
    """
    from twr.services import dead_letters as service

    chosen = _selection(ids, route, reason, everything, limit)
    ask = everything and not yes and sys.stdin.isatty()
    loaded, environ = open_config(config, env_file)

    async def work(store: "Store", stats: "Stats") -> None:
        service.check(chosen, _names(loaded), stats)
        await _insist(store, chosen, service.known_routes(_names(loaded), stats), as_json)
        total = _total(chosen, stats)
        if ask and total:
            _confirm(total)
        outcomes = service.drop(store.dead_letters, chosen, stats)
        await _carry_out(outcomes, total, loaded, "dropped", as_json)

    _with_store(loaded, environ, env_file, work)


def _selection(
    ids: list[str] | None,
    routes: list[str] | None,
    reasons: list[str] | None,
    everything: bool,
    limit: int | None,
) -> "Selection":
    from twr.services.dead_letters import Selection

    chosen = bool(routes or reasons or everything)
    if ids and (chosen or limit is not None):
        raise UsageError("give ids, or choose with --route, --reason, --all and --limit; not both")
    if not ids and not chosen:
        raise UsageError("which dead letters? give their ids, --route, --reason or --all")
    return Selection(
        tuple(dict.fromkeys(ids or ())), frozenset(routes or ()), frozenset(reasons or ()), limit
    )


async def _insist(
    store: "Store", chosen: "Selection", routes: Collection[str], as_json: bool
) -> None:
    """A single id that is not there is told with the id that was probably meant."""
    from twr.services import dead_letters as service

    if len(chosen.ids) == 1 and not as_json:
        await service.find(store.dead_letters, chosen.ids[0], routes)


def _total(chosen: "Selection", stats: "Stats") -> int:
    count = chosen.count(stats)
    return count if chosen.limit is None else min(count, chosen.limit)


def _confirm(total: int) -> None:
    if not typer.confirm(f"Delete {_letters(total)} for good?", err=True):
        raise TwrError("nothing was dropped")


async def _carry_out(
    outcomes: AsyncIterator["Outcome"], total: int, config: "Config", verb: str, as_json: bool
) -> None:
    """Do it all, and tell at the end what was done and what was not."""
    from anyio import get_cancelled_exc_class

    from twr.cli import letters

    tally = letters.Tally(str(config.file))
    try:
        with letters.progress(total, verb) as advance:
            async for outcome in outcomes:
                tally.add(outcome)
                advance()
                if as_json:
                    print_json(_as_json(outcome))
    except StoreError as error:
        raise type(error)(f"{error}; {tally.done} of {_letters(total)} {verb} before") from None
    except get_cancelled_exc_class():  # Ctrl-C
        typer.echo(f"{verb} {tally.done} of {_letters(total)}", err=True)
        raise
    _tell(tally, verb, as_json)


def _as_json(outcome: "Outcome") -> dict[str, Any]:
    known = {"id": outcome.id, "result": outcome.result}
    return known if outcome.to is None else {**known, "to": outcome.to}


def _tell(tally: "Tally", verb: str, as_json: bool) -> None:
    if not as_json:
        for line in tally.failures():
            typer.echo(line, err=True)
        if tally.done or not tally.failed:
            typer.echo(f"{verb} {_letters(tally.done)}")
    if not tally.failed:
        return
    if tally.done or tally.failed > 1:
        typer.echo(f"not {verb}: {_letters(tally.failed)}", err=True)
    raise typer.Exit(1)


def _letters(count: int) -> str:
    return f"{count} dead {'letter' if count == 1 else 'letters'}"


def _names(config: "Config") -> tuple[str, ...]:
    return tuple(route.name for route in config.routes)


def _with_store(
    config: "Config", environ: Mapping[str, str], env_file: Path | None, work: Work
) -> None:
    from twr.cli.store import with_store

    async def counted(store: "Store") -> None:
        await work(store, await store.stats())

    with_store(config, environ, env_file, counted)
