"""Which routes an update goes to, and the reasons given."""

from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twr.core.matching import (
    Match,
    Rule,
    effective_types,
    explain,
    left_out,
    relies_on_username,
    select,
    wanted_types,
)
from twr.core.update import COMMAND_TYPES, DEFAULT_TYPES, TYPES, Facts

EVERYTHING = Match()


def facts(**known: Any) -> Facts:
    """The facts of an update of which only `known` is known."""
    values: dict[str, Any] = dict.fromkeys(field.name for field in fields(Facts))
    return Facts(**{**values, "update_id": 1, "lane": "1", "expires_after": 86_400, **known})


def takes(match: Match, found: Facts, username: str | None = "my_bot") -> bool:
    """Whether a route with `match` alone takes the update."""
    return select([Rule("a", match)], found, username) == ("a",)


def why(rule: Rule, found: Facts, username: str | None = "my_bot") -> str:
    """What is said of the one rule."""
    (decision,) = explain([rule], found, username)
    return decision.why


@pytest.mark.parametrize(
    ("match", "known", "expected"),
    [
        (EVERYTHING, {}, True),
        (Match(update_types=frozenset({"message", "poll"})), {"type": "poll"}, True),
        (Match(update_types=frozenset({"message"})), {"type": "edited_message"}, False),
        (Match(update_types=frozenset({"message"})), {}, False),
        (Match(user_ids=frozenset({7})), {"user_id": 7}, True),
        (Match(user_ids=frozenset({7})), {"user_id": 8, "chat_id": 7}, False),
        (Match(user_ids=frozenset({7})), {}, False),
        (Match(chat_ids=frozenset({-100})), {"chat_id": -100}, True),
        (Match(chat_ids=frozenset({-100})), {"chat_id": 100}, False),
        (Match(chat_ids=frozenset({-100})), {}, False),
        (Match(chat_types=frozenset({"private"})), {"chat_type": "private"}, True),
        (Match(chat_types=frozenset({"private"})), {"chat_type": "group"}, False),
        (Match(topic_ids=frozenset({4})), {"topic_id": 4}, True),
        (Match(topic_ids=frozenset({4})), {"topic_id": 5}, False),
        (Match(topic_ids=frozenset({1})), {}, False),
        (Match(commands=frozenset({"start"})), {"command": "start"}, True),
        (Match(commands=frozenset({"start"})), {"command": "START"}, True),
        (Match(commands=frozenset({"start"})), {"command": "started"}, False),
        (Match(commands=frozenset({"new"})), {"command": "new_order"}, False),
        (Match(commands=frozenset({"start"})), {}, False),
        (Match(start_prefixes=("ref", "x")), {"command": "start", "start_payload": "ref1"}, True),
        (Match(start_prefixes=("ref",)), {"command": "start", "start_payload": "Ref1"}, False),
        (Match(start_prefixes=("ref",)), {"command": "start"}, False),
        (Match(start_prefixes=("",)), {"command": "start", "start_payload": "x"}, True),
        (Match(start_prefixes=("",)), {"command": "start"}, False),
        (Match(callback_prefixes=("order:", "ticket:")), {"callback_data": "ticket:1"}, True),
        (Match(callback_prefixes=("order:",)), {"callback_data": "reorder:1"}, False),
        (Match(callback_prefixes=("order:",)), {}, False),
        (Match(callback_prefixes=("",)), {}, False),
        (Match(user_ids=frozenset({7}), chat_ids=frozenset({5})), {"user_id": 7}, False),
        (
            Match(user_ids=frozenset({7}), chat_ids=frozenset({5})),
            {"user_id": 7, "chat_id": 5},
            True,
        ),
    ],
)
def test_match(match: Match, known: dict[str, Any], expected: bool) -> None:
    """All fields must hold, one value of each is enough, an absent fact meets none."""
    assert takes(match, facts(**known)) is expected


@pytest.mark.parametrize(
    ("target", "username", "expected"),
    [
        (None, "my_bot", True),
        (None, None, True),
        ("my_bot", "my_bot", True),
        ("MY_BOT", "my_bot", True),
        ("my_bot", "My_Bot", True),
        ("other_bot", "my_bot", False),
        ("my_bot2", "my_bot", False),
        ("other_bot", None, True),
    ],
)
def test_command_addressed_to_a_bot(
    target: str | None, username: str | None, expected: bool
) -> None:
    """A command for another bot is none for us; while our name is unknown, all are ours."""
    found = facts(command="start", start_payload="ref", command_target=target)
    assert takes(Match(commands=frozenset({"start"})), found, username) is expected
    assert takes(Match(start_prefixes=("ref",)), found, username) is expected


def test_addressing_matters_only_to_command_routes() -> None:
    """A route for messages takes commands for other bots too: its service would see them."""
    found = facts(type="message", command="start", command_target="other_bot")
    assert takes(Match(update_types=frozenset({"message"})), found)


MESSAGES = Match(update_types=frozenset({"message"}))
ADMIN = Match(user_ids=frozenset({7}))


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ([], ()),
        ([Rule("a", MESSAGES), Rule("b", EVERYTHING)], ("a", "b")),
        ([Rule("b", EVERYTHING), Rule("a", MESSAGES)], ("b", "a")),
        ([Rule("a", MESSAGES, exclude=ADMIN)], ()),
        ([Rule("a", MESSAGES, exclude=Match(user_ids=frozenset({8})))], ("a",)),
        ([Rule("f", EVERYTHING, fallback=True), Rule("a", MESSAGES)], ("a",)),
        ([Rule("a", MESSAGES, exclude=ADMIN), Rule("f", EVERYTHING, fallback=True)], ("f",)),
        ([Rule("f", EVERYTHING, exclude=ADMIN, fallback=True)], ()),
        (
            [
                Rule("f", Match(update_types=frozenset({"poll"})), fallback=True),
                Rule("g", EVERYTHING, fallback=True),
                Rule("h", EVERYTHING, fallback=True),
            ],
            ("g",),
        ),
    ],
)
def test_select(rules: list[Rule], expected: tuple[str, ...]) -> None:
    """All that match take the update, in order; a fallback only where nobody else did."""
    assert select(rules, facts(type="message", user_id=7), "my_bot") == expected


@pytest.mark.parametrize(
    ("rule", "known", "expected"),
    [
        (Rule("a", MESSAGES), {"type": "message"}, "update_types: message"),
        (Rule("a", MESSAGES), {"type": "poll"}, "update_types: poll is not listed"),
        (Rule("a", MESSAGES), {}, "update_types: the update has none"),
        (Rule("a", EVERYTHING), {}, "match: everything"),
        (Rule("a", EVERYTHING, fallback=True), {}, "fallback: match: everything"),
        (Rule("a", EVERYTHING, exclude=ADMIN), {"user_id": 7}, "except: user_ids: 7"),
        (Rule("a", EVERYTHING, exclude=EVERYTHING), {}, "except: match: everything"),
        (
            Rule("a", Match(user_ids=frozenset({7}), commands=frozenset({"go"}))),
            {"user_id": 7, "command": "GO"},
            "user_ids: 7; commands: /GO",
        ),
        (
            Rule("a", Match(user_ids=frozenset({8}), commands=frozenset({"go"}))),
            {"user_id": 7, "command": "stop"},
            "user_ids: 7 is not listed; commands: /stop is not listed",
        ),
        (
            Rule("a", Match(commands=frozenset({"go"}))),
            {"command": "go", "command_target": "other_bot"},
            "commands: /go addressed to @other_bot, another bot",
        ),
        (
            Rule("a", Match(start_prefixes=("ref",))),
            {"command": "start", "start_payload": "ref42"},
            "start_prefixes: ref42",
        ),
        (
            Rule("a", Match(callback_prefixes=("order:",))),
            {"callback_data": "x\n" + "y" * 100},
            "callback_prefixes: x\\x0a" + "y" * 58 + "… is not listed",
        ),
    ],
)
def test_explain(rule: Rule, known: dict[str, Any], expected: str) -> None:
    """The reason names the fields of the file and what the update has for them."""
    assert why(rule, facts(**known)) == expected


def test_explain_names_who_took_it_before_a_fallback() -> None:
    """A fallback that stands back says for whom."""
    rules = [Rule("a", MESSAGES), Rule("f", EVERYTHING, fallback=True)]
    decisions = explain(rules, facts(type="message"), "my_bot")
    assert [(decision.route, decision.takes) for decision in decisions] == [
        ("a", True),
        ("f", False),
    ]
    assert decisions[1].why == "fallback: taken by a"


def test_explain_says_when_the_own_name_is_not_known() -> None:
    """A command taken on trust is marked as such."""
    rule = Rule("a", Match(commands=frozenset({"go"})))
    found = facts(command="go", command_target="some_bot")
    assert why(rule, found, None) == (
        "commands: /go addressed to @some_bot (own username not known)"
    )


@pytest.mark.parametrize(
    ("rule", "target", "username", "expected"),
    [
        (Rule("a", Match(commands=frozenset({"go"}))), "x_bot", None, True),
        (Rule("a", Match(start_prefixes=("go",))), "x_bot", None, True),
        (Rule("a", MESSAGES, exclude=Match(commands=frozenset({"go"}))), "x_bot", None, True),
        (Rule("a", MESSAGES), "x_bot", None, False),
        (Rule("a", Match(commands=frozenset({"go"}))), None, None, False),
        (Rule("a", Match(commands=frozenset({"go"}))), "x_bot", "my_bot", False),
    ],
)
def test_relies_on_username(
    rule: Rule, target: str | None, username: str | None, expected: bool
) -> None:
    """The missing name matters where a command is addressed and a rule asks for commands."""
    found = facts(type="message", command="go", command_target=target)
    assert relies_on_username([rule], found, username) is expected


@pytest.mark.parametrize(
    ("matches", "expected"),
    [
        ([EVERYTHING], ()),
        ([ADMIN], ()),
        ([Match(chat_types=frozenset({"private"})), MESSAGES], ()),
        ([MESSAGES], ("message",)),
        ([Match(commands=frozenset({"go"}))], COMMAND_TYPES),
        ([Match(start_prefixes=("ref",))], COMMAND_TYPES),
        ([Match(callback_prefixes=("a",))], ("callback_query",)),
        ([Match(callback_prefixes=("a",), commands=frozenset({"go"}))], ("callback_query",)),
        (
            [Match(callback_prefixes=("a",), update_types=frozenset({"message"}))],
            ("message",),
        ),
        (
            [Match(callback_prefixes=("a",)), MESSAGES],
            ("message", "callback_query"),
        ),
        (
            [Match(update_types=frozenset({"zeta", "alpha", "poll", "message"}))],
            ("message", "poll", "alpha", "zeta"),
        ),
        (
            [EVERYTHING, Match(update_types=frozenset({"chat_member"}))],
            tuple(name for name in TYPES if name in {*DEFAULT_TYPES, "chat_member"}),
        ),
        ([], ()),
    ],
)
def test_wanted_types(matches: list[Match], expected: tuple[str, ...]) -> None:
    """Telegram is asked for what the routes need, and for its default by asking for nothing."""
    rules = [Rule(str(number), match) for number, match in enumerate(matches)]
    assert wanted_types(rules) == expected


@pytest.mark.parametrize(
    ("allowed", "expected"),
    [
        (None, frozenset(DEFAULT_TYPES)),
        ((), frozenset(DEFAULT_TYPES)),
        (["poll"], frozenset({"poll"})),
    ],
)
def test_effective_types(allowed: list[str] | None, expected: frozenset[str]) -> None:
    """No list and an empty list both stand for the default set."""
    assert effective_types(allowed) == expected


def some(values: list[Any]) -> st.SearchStrategy[Any]:
    """None or a few of `values`, as a match has them."""
    return st.none() | st.frozensets(st.sampled_from(values), min_size=1)


PREFIXES = st.none() | st.lists(st.sampled_from(["", "a", "ab", "b"]), min_size=1).map(tuple)
MATCHES = st.builds(
    Match,
    update_types=some(["message", "poll"]),
    user_ids=some([1, 2]),
    chat_ids=some([1, 2]),
    chat_types=some(["private", "group"]),
    topic_ids=some([1, 2]),
    commands=some(["start", "go"]),
    start_prefixes=PREFIXES,
    callback_prefixes=PREFIXES,
)
RULES = st.lists(
    st.builds(
        Rule,
        name=st.sampled_from("abcdefgh"),
        match=MATCHES,
        exclude=st.none() | MATCHES,
        fallback=st.booleans(),
    ),
    max_size=6,
    unique_by=lambda rule: rule.name,
)
IDS = st.sampled_from([None, 1, 2])
FACTS = st.builds(
    facts,
    type=st.sampled_from([None, "message", "poll"]),
    user_id=IDS,
    chat_id=IDS,
    chat_type=st.sampled_from([None, "private", "group"]),
    topic_id=IDS,
    command=st.sampled_from([None, "start", "Go"]),
    command_target=st.sampled_from([None, "my_bot", "OTHER"]),
    start_payload=st.sampled_from([None, "a", "abc"]),
    callback_data=st.sampled_from([None, "", "a", "abc"]),
)


@given(RULES, FACTS, st.sampled_from([None, "My_Bot"]))
def test_select_agrees_with_explain(rules: list[Rule], found: Facts, username: str | None) -> None:
    """There is a decision for every rule, and those that take are those selected."""
    decisions = explain(rules, found, username)
    assert [decision.route for decision in decisions] == [rule.name for rule in rules]
    taken = tuple(decision.route for decision in decisions if decision.takes)
    assert taken == select(rules, found, username)
    assert all(decision.why for decision in decisions)


@given(RULES, FACTS)
def test_a_fallback_takes_alone(rules: list[Rule], found: Facts) -> None:
    """Whenever a fallback takes an update, no other route did."""
    taken = select(rules, found, "my_bot")
    if any(rule.fallback for rule in rules if rule.name in taken):
        assert len(taken) == 1


@pytest.mark.parametrize(
    ("listed", "route", "types"),
    [
        (("message",), Rule("all", Match()), None),
        (("message", "poll"), Rule("a", Match(update_types=frozenset({"message"}))), None),
        (("message",), Rule("a", Match(update_types=frozenset({"message", "poll"}))), ("poll",)),
        (("message",), Rule("a", Match(callback_prefixes=("x",))), ("callback_query",)),
        (("message",), Rule("a", Match(commands=frozenset({"start"}))), None),
        ((), Rule("a", Match(update_types=frozenset({"chat_member"}))), ("chat_member",)),
        ((), Rule("a", Match(update_types=frozenset({"message"}))), None),
    ],
)
def test_what_a_list_by_hand_leaves_out(
    listed: tuple[str, ...], route: Rule, types: tuple[str, ...] | None
) -> None:
    """A route that names its types waits for each, any other for at least one of its own."""
    expected = [] if types is None else [(route.name, types)]
    assert list(left_out(listed, [route])) == expected
