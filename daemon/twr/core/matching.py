"""Which routes an update goes to, and why."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields

from twr.core.text import clip, escape
from twr.core.update import COMMAND_TYPES, DEFAULT_TYPES, TYPES, Facts

_LONGEST_QUOTE = 64


@dataclass(frozen=True, slots=True)
class Match:
    """Conditions joined by AND, the values of one by OR; None asks for nothing.

    `commands` are lower case, without slash.
    """

    update_types: frozenset[str] | None = None
    user_ids: frozenset[int] | None = None
    chat_ids: frozenset[int] | None = None
    chat_types: frozenset[str] | None = None
    topic_ids: frozenset[int] | None = None
    commands: frozenset[str] | None = None
    start_prefixes: tuple[str, ...] | None = None
    callback_prefixes: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Rule:
    """What a route takes: `match` without `exclude` (`except:` in the file).

    A fallback takes only what no other route took; of several, the first that matches.
    """

    name: str
    match: Match
    exclude: Match | None = None
    fallback: bool = False


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether `route` takes an update, and why, in the words of the configuration file."""

    route: str
    takes: bool
    why: str


def select(rules: Sequence[Rule], facts: Facts, username: str | None) -> tuple[str, ...]:
    """The names of the routes that take an update, in the order of `rules`.

    `username` is the bot's own, in any case and without @. While it is None, a command
    counts whomever it is addressed to.
    """
    taken = tuple(
        [rule.name for rule in rules if not rule.fallback and _fits(rule, facts, username)]
    )
    return taken or _fallback(rules, facts, username)


def explain(rules: Sequence[Rule], facts: Facts, username: str | None) -> tuple[Decision, ...]:
    """One decision for every rule, in agreement with `select`."""
    taken = select(rules, facts, username)
    return tuple(_decide(rule, facts, username, taken) for rule in rules)


def relies_on_username(rules: Sequence[Rule], facts: Facts, username: str | None) -> bool:
    """Whether a rule asks whom this command is addressed to while `username` is not known."""
    if username is not None or facts.command_target is None:
        return False
    return any(_asks_for_commands(match) for rule in rules for match in (rule.match, rule.exclude))


def wanted_types(rules: Sequence[Rule]) -> tuple[str, ...]:
    """What `allowed_updates: auto` asks Telegram for, in the order of the Bot API.

    Empty means Telegram's own default set, as it does in setWebhook: that set can grow.
    """
    wanted = {name for rule in rules for name in _wanted_by(rule.match)}
    return () if wanted == set(DEFAULT_TYPES) else tuple(sorted(wanted, key=_rank))


def effective_types(allowed_updates: Sequence[str] | None) -> frozenset[str]:
    """What a webhook receives that is set to `allowed_updates`: absent or empty is the default."""
    return frozenset(allowed_updates or DEFAULT_TYPES)


def left_out(
    allowed_updates: Sequence[str], rules: Sequence[Rule]
) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The routes that wait for update types which `allowed_updates` leaves out, and those types.

    A route that names its types waits for each of them, any other one for at least one.
    """
    allowed = effective_types(allowed_updates)
    for rule in rules:
        wanted = effective_types(wanted_types([rule]))
        missing = wanted - allowed
        if missing and (rule.match.update_types is not None or missing == wanted):
            yield rule.name, tuple(sorted(missing))


def matches(match: Match, facts: Facts, username: str | None) -> bool:
    """Whether all conditions of `match` hold; a fact that is absent meets no condition."""
    return (
        (match.update_types is None or facts.type in match.update_types)
        and (match.user_ids is None or facts.user_id in match.user_ids)
        and (match.chat_ids is None or facts.chat_id in match.chat_ids)
        and (match.chat_types is None or facts.chat_type in match.chat_types)
        and (match.topic_ids is None or facts.topic_id in match.topic_ids)
        and (match.commands is None or _is_command(match.commands, facts, username))
        and (match.start_prefixes is None or _is_start(match.start_prefixes, facts, username))
        and (match.callback_prefixes is None or _is_callback(match.callback_prefixes, facts))
    )


def _fits(rule: Rule, facts: Facts, username: str | None) -> bool:
    return matches(rule.match, facts, username) and (
        rule.exclude is None or not matches(rule.exclude, facts, username)
    )


def _fallback(rules: Sequence[Rule], facts: Facts, username: str | None) -> tuple[str, ...]:
    for rule in rules:
        if rule.fallback and _fits(rule, facts, username):
            return (rule.name,)
    return ()


def _is_command(commands: frozenset[str], facts: Facts, username: str | None) -> bool:
    if facts.command is None or facts.command.lower() not in commands:
        return False
    return _is_ours(facts.command_target, username)


def _is_start(prefixes: tuple[str, ...], facts: Facts, username: str | None) -> bool:
    if facts.start_payload is None or not facts.start_payload.startswith(prefixes):
        return False
    return _is_ours(facts.command_target, username)


def _is_callback(prefixes: tuple[str, ...], facts: Facts) -> bool:
    return facts.callback_data is not None and facts.callback_data.startswith(prefixes)


def _is_ours(target: str | None, username: str | None) -> bool:
    return target is None or username is None or target.lower() == username.lower()


def _asks_for_commands(match: Match | None) -> bool:
    return match is not None and (match.commands is not None or match.start_prefixes is not None)


def _wanted_by(match: Match) -> Sequence[str] | frozenset[str]:
    if match.update_types is not None:
        return match.update_types
    if match.callback_prefixes is not None:
        return ("callback_query",)
    return COMMAND_TYPES if _asks_for_commands(match) else DEFAULT_TYPES


def _rank(name: str) -> tuple[int, str]:
    return (TYPES.index(name) if name in TYPES else len(TYPES), name)


def _decide(rule: Rule, facts: Facts, username: str | None, taken: tuple[str, ...]) -> Decision:
    """`taken` are the names of the routes that do take the update."""
    refusals = [why for fits, why in _conditions(rule.match, facts, username) if not fits]
    if refusals:
        return Decision(rule.name, False, "; ".join(refusals))
    if rule.exclude is not None and matches(rule.exclude, facts, username):
        return Decision(rule.name, False, f"except: {_reasons(rule.exclude, facts, username)}")
    if rule.name not in taken:
        return Decision(rule.name, False, f"fallback: taken by {', '.join(taken)}")
    why = _reasons(rule.match, facts, username)
    return Decision(rule.name, True, f"fallback: {why}" if rule.fallback else why)


def _reasons(match: Match, facts: Facts, username: str | None) -> str:
    return "; ".join(why for _, why in _conditions(match, facts, username)) or "match: everything"


def _conditions(match: Match, facts: Facts, username: str | None) -> Iterator[tuple[bool, str]]:
    """Whether each condition of `match` holds, asked one by one, and how to say so."""
    for field in fields(match):
        asked = getattr(match, field.name)
        if asked is not None:
            fits = matches(Match(**{field.name: asked}), facts, username)
            yield fits, f"{field.name}: {_found(field.name, facts, username, fits)}"


def _found(field: str, facts: Facts, username: str | None, fits: bool) -> str:
    value = {
        "update_types": facts.type,
        "user_ids": facts.user_id,
        "chat_ids": facts.chat_id,
        "chat_types": facts.chat_type,
        "topic_ids": facts.topic_id,
        "commands": _written(facts),
        "start_prefixes": facts.start_payload,
        "callback_prefixes": facts.callback_data,
    }[field]
    if value is None:
        return "the update has none"
    quoted = clip(escape(str(value)), _LONGEST_QUOTE)
    if field in ("commands", "start_prefixes"):
        return quoted + _address(facts.command_target, username, fits)
    return quoted if fits else f"{quoted} is not listed"


def _written(facts: Facts) -> str | None:
    return None if facts.command is None else f"/{facts.command}"


def _address(target: str | None, username: str | None, fits: bool) -> str:
    """What follows a command in an explanation: to whom it is addressed, where that matters."""
    if target is None:
        return "" if fits else " is not listed"
    addressed = f" addressed to @{clip(target, _LONGEST_QUOTE)}"
    if not _is_ours(target, username):
        return f"{addressed}, another bot"
    if not fits:
        return " is not listed"
    return f"{addressed} (own username not known)" if username is None else ""
