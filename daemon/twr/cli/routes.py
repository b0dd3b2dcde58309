"""`twr routes`: what they are, which of them an update takes, and moving what waits for one."""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from twr.cli.common import ConfigOption, EnvFileOption, JsonOption, new_app, open_config, print_json
from twr.cli.completion import route_names
from twr.errors import NotFound, TwrError, UsageError

if TYPE_CHECKING:
    from twr.config import Config, Route
    from twr.core.matching import Decision, Match
    from twr.core.update import Facts
    from twr.edges.store import Store

app = new_app()


@app.callback()
def routes() -> None:
    """List the routes, test updates against them, move waiting work."""


@app.command("list")
def list_routes(
    config: ConfigOption = None, env_file: EnvFileOption = None, as_json: JsonOption = False
) -> None:
    """List the routes: name, target, and what each takes.

    --json prints one array of {"name", "target_url", "match", "except", "fallback", "order"}.
    """
    loaded, _ = open_config(config, env_file)
    if as_json:
        print_json([_described(route) for route in loaded.routes])
        return
    width = max(len(route.name) for route in loaded.routes)
    for route in loaded.routes:
        typer.echo(f"{route.name:<{width}}  {route.target}  {_summary(route)}")


@app.command("test")
def explain_updates(
    file: Annotated[
        str, typer.Argument(metavar="FILE|-", help="One update, or one on each line; - is stdin.")
    ],
    more: Annotated[list[str] | None, typer.Argument(metavar="", hidden=True)] = None,
    expect: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME...", help="Exit 1 unless exactly these take each update ('': none)."
        ),
    ] = None,
    config: ConfigOption = None,
    env_file: EnvFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show which routes an update takes, and why.

    --json prints one object for each update: {"update_id", "facts", "routes": [{"name",
    "takes", "why"}]}.
    """
    from twr.core.matching import explain

    loaded, _ = open_config(config, env_file)
    expected = _expected(loaded, expect, more)
    differs = False
    for facts in _updates(file):
        decisions = explain(loaded.rules, facts, loaded.bot.username)
        _show(facts, decisions, as_json=as_json)
        if expected is not None:
            differs |= _differs(facts, decisions, expected)
    if differs:
        raise typer.Exit(1)


@app.command("move")
def move_work(
    old: Annotated[str, typer.Argument(help="Where it waits; may be gone from the file.")],
    new: Annotated[str, typer.Argument(help="Where it shall go.", autocompletion=route_names)],
    config: ConfigOption = None,
    env_file: EnvFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Move the waiting work of route OLD to route NEW, each update to the end of its lane there.

    What is in flight stays, and so does what NEW already has: then the exit code is 1. --json
    prints {"moved", "stayed"}.
    """
    from twr.cli.store import with_store
    from twr.services.dead_letters import known_routes, require

    if old == new:
        raise UsageError("OLD and NEW are the same route")
    loaded, environ = open_config(config, env_file)
    ordered = {route.name: route.order == "chat" for route in loaded.routes}
    if new not in ordered:
        raise NotFound(_no_route(loaded, new))

    async def move(store: "Store") -> tuple[int, int]:
        known = known_routes(ordered, await store.stats())
        require(old, known, "neither the configuration nor the store has a route")
        return await store.move(old, new, ordered=ordered[new])

    moved, stayed = with_store(loaded, environ, env_file, move)
    _tell_moved(old, new, moved, stayed, as_json=as_json)


def _tell_moved(old: str, new: str, moved: int, stayed: int, *, as_json: bool) -> None:
    if as_json:
        print_json({"moved": moved, "stayed": stayed})
    else:
        typer.echo(f"moved {moved} from {old} to {new}")
    if stayed:
        why = f"in flight, or {new} has the update already"
        typer.echo(f"{stayed} still with {old}: {why}", err=True)
        raise typer.Exit(1)


def _expected(
    config: "Config", expect: Sequence[str] | None, more: Sequence[str] | None
) -> frozenset[str] | None:
    """The names after --expect: several options, several words, or separated by commas."""
    if expect is None:
        if more:
            raise UsageError(f"{more[0]} is one argument too many; names of routes go to --expect")
        return None
    words = [*expect, *(more or ())]
    names = frozenset(name for word in words for name in word.split(",") if name)
    for unknown in sorted(names - {route.name for route in config.routes}):
        raise NotFound(_no_route(config, unknown))
    return names


def _no_route(config: "Config", name: str) -> str:
    from twr.core.nearest import nearest

    close = nearest(name, [route.name for route in config.routes])
    return f"{config.file} has no route {name}" + (f"; did you mean {close}?" if close else "")


def _updates(file: str) -> Iterator["Facts"]:
    """The facts of each update in `file`. Raises TwrError where there is none."""
    from twr.core import update

    content = _content(file)
    try:
        whole = update.parse(content)
    except update.InvalidUpdate as error:
        if len(content.split(b"\n", 1)) < 2 or not content.split(b"\n", 1)[1].strip():
            raise TwrError(f"{file}: no update: {error}") from None
    else:
        yield update.read(whole)
        return
    for number, line in enumerate(content.split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            yield update.read(update.parse(line))
        except update.InvalidUpdate as error:
            raise TwrError(f"{file}:{number}: no update: {error}") from None


def _content(file: str) -> bytes:
    if file == "-":
        return sys.stdin.buffer.read()
    try:
        return Path(file).read_bytes()
    except OSError as error:
        raise UsageError(f"{file}: cannot be read: {error.strerror}") from None


def _show(facts: "Facts", decisions: Sequence["Decision"], *, as_json: bool) -> None:
    if as_json:
        known = asdict(facts)
        update_id, _ = known.pop("update_id"), known.pop("chat_type")
        found = [{"name": d.route, "takes": d.takes, "why": d.why} for d in decisions]
        print_json({"update_id": update_id, "facts": known, "routes": found})
        return
    typer.echo(f"update {facts.update_id}: {_facts_text(facts)}")
    width = max(len(decision.route) for decision in decisions)
    for decision in decisions:
        verdict = "takes" if decision.takes else "skips"
        typer.echo(f"  {verdict}  {decision.route:<{width}}  {decision.why}")


def _facts_text(facts: "Facts") -> str:
    from twr.core.text import clip, kv

    return kv(
        type=facts.type,
        user_id=facts.user_id,
        chat_id=facts.chat_id,
        topic_id=facts.topic_id,
        command=facts.command,
        start_payload=facts.start_payload,
        callback_data=None if facts.callback_data is None else clip(facts.callback_data, 64),
        lane=facts.lane,
    )


def _differs(facts: "Facts", decisions: Sequence["Decision"], expected: frozenset[str]) -> bool:
    taking = {decision.route for decision in decisions if decision.takes}
    if taking == expected:
        return False
    typer.echo(
        f"update {facts.update_id}: expected {_names(expected)}, goes to {_names(taking)}", err=True
    )
    return True


def _names(names: frozenset[str] | set[str]) -> str:
    return ", ".join(sorted(names)) or "no route"


def _described(route: "Route") -> dict[str, Any]:
    exclude = route.rule.exclude
    return {
        "name": route.name,
        "target_url": route.target,
        "match": _conditions(route.rule.match),
        "except": None if exclude is None else _conditions(exclude),
        "fallback": route.rule.fallback,
        "order": route.order,
    }


def _conditions(match: "Match") -> dict[str, list[Any]]:
    asked = {field.name: getattr(match, field.name) for field in fields(match)}
    return {name: sorted(values) for name, values in asked.items() if values is not None}


def _summary(route: "Route") -> str:
    parts = [_conditions_text(route.rule.match) or "everything"]
    if route.rule.exclude is not None:
        parts.append(f"except {_conditions_text(route.rule.exclude)}")
    if route.rule.fallback:
        parts.append("fallback")
    return "; ".join(parts)


def _conditions_text(match: "Match") -> str:
    from twr.core.text import escape

    return " and ".join(
        f"{name}: {escape(', '.join(map(str, values)))}"
        for name, values in _conditions(match).items()
    )
