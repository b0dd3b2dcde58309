"""When an alert is told."""

import math

import pytest

from twr.core import alerting
from twr.core.alerting import Alert, Firing, Notice
from twr.core.findings import Finding

NOW = 1_790_000_000.0
REPEAT = 4 * 3600.0
DRIFT = Finding("webhook_url_drift", None, (("actual", "https://old.example"),))
DOWN = Finding("route_down", "shop", (("failures", 5),))


def judge_all(alert: Alert) -> bool:
    """Every look can tell of every alert."""
    return True


def judge_none(alert: Alert) -> bool:
    """This look can tell nothing."""
    return False


def step(firing: Firing, *findings: Finding, now: float = NOW) -> tuple[Firing, tuple[Notice, ...]]:
    """A look that can tell everything."""
    return alerting.step(firing, findings, judge_all, REPEAT, now)


def test_an_alert_is_told_at_once() -> None:
    """The first look that finds it makes a notice, with its detail."""
    firing, notices = step({}, DRIFT)
    assert notices == (Notice("firing", "webhook_url_drift", None, DRIFT.detail, NOW, NOW),)
    assert firing == {"webhook_url_drift": Alert("webhook_url_drift", None, NOW, NOW, DRIFT.detail)}


@pytest.mark.parametrize(("after", "kinds"), [(1.0, []), (REPEAT - 1, []), (REPEAT, ["repeat"])])
def test_an_alert_is_repeated_every_so_often(after: float, kinds: list[str]) -> None:
    """Not before its time."""
    firing, _ = step({}, DRIFT)
    _, notices = step(firing, DRIFT, now=NOW + after)
    assert [notice.kind for notice in notices] == kinds


def test_a_repeat_counts_from_the_last_time_told() -> None:
    """And keeps the time when it all began."""
    firing, _ = step({}, DRIFT)
    firing, _ = step(firing, DRIFT, now=NOW + REPEAT)
    firing, none = step(firing, DRIFT, now=NOW + 2 * REPEAT - 1)
    _, notices = step(firing, DRIFT, now=NOW + 2 * REPEAT)
    assert none == ()
    assert [(it.kind, it.since) for it in notices] == [("repeat", NOW)]


def test_an_alert_is_resolved_once() -> None:
    """The look that does not find it any more tells so, the next one nothing."""
    firing, _ = step({}, DRIFT)
    firing, notices = step(firing, now=NOW + 60)
    assert notices == (Notice("resolved", "webhook_url_drift", None, (), NOW, NOW + 60),)
    assert step(firing, now=NOW + 61) == ({}, ())


def test_alerts_are_told_apart_by_subject() -> None:
    """Two routes are two alerts."""
    other = Finding("route_down", "support")
    firing, notices = step({}, DOWN, other)
    assert [(it.alert, it.subject) for it in notices] == [
        ("route_down", "shop"),
        ("route_down", "support"),
    ]
    _, notices = step(firing, other)
    assert [(it.kind, it.subject) for it in notices] == [("resolved", "shop")]


def test_what_cannot_be_judged_is_not_over() -> None:
    """It stays, and is repeated, until a look can tell."""
    firing, _ = step({}, DRIFT)
    kept, notices = alerting.step(firing, [], judge_none, REPEAT, NOW + 60)
    assert (kept, notices) == (firing, ())
    _, notices = alerting.step(firing, [], judge_none, REPEAT, NOW + REPEAT)
    assert [(it.kind, it.detail) for it in notices] == [("repeat", DRIFT.detail)]


def test_a_repeat_tells_the_latest_detail() -> None:
    """What is known now, not what was known at first."""
    firing, _ = step({}, DOWN)
    worse = Finding("route_down", "shop", (("failures", 99),))
    firing, _ = step(firing, worse, now=NOW + 60)
    assert firing["route_down/shop"].detail == worse.detail
    _, notices = step(firing, worse, now=NOW + REPEAT)
    assert notices[0].detail == worse.detail


def test_a_clock_that_was_set_back_does_not_silence_an_alert() -> None:
    """The repeat comes one period after the clock was set, not when it has caught up."""
    firing, _ = step({}, DRIFT, now=NOW + 1e6)
    firing, notices = step(firing, DRIFT)
    assert notices == ()
    _, notices = step(firing, DRIFT, now=NOW + REPEAT)
    assert [it.kind for it in notices] == ["repeat"]


def test_a_restart_neither_repeats_nor_forgets() -> None:
    """An alert that was stored and read again is the same one."""
    firing, _ = step({}, DRIFT, DOWN)
    read = [alerting.load(name, alerting.dump(alert)) for name, alert in firing.items()]
    again = {alert.key: alert for alert in read if alert is not None}
    assert again == firing
    assert step(again, DRIFT, DOWN, now=NOW + 60)[1] == ()
    assert [it.kind for it in step(again, now=NOW + 60)[1]] == ["resolved", "resolved"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nonsense",
        "1",
        "[]",
        "{}",
        '{"since": 1}',
        '{"since": "x", "told_at": 1, "detail": {}}',
        '{"since": -1, "told_at": 1, "detail": {}}',
        '{"since": NaN, "told_at": 1, "detail": {}}',
        '{"since": 1, "told_at": Infinity, "detail": {}}',
        '{"since": 1, "told_at": 1, "detail": []}',
        '{"since": 1, "told_at": 1}',
        "[" * 100_000,
    ],
)
def test_state_that_cannot_be_read_is_none(text: str) -> None:
    """Whatever the store holds, the probe starts."""
    assert alerting.load("webhook_url_drift", text) is None


def test_state_without_a_name_is_none() -> None:
    """An empty key is nobody's."""
    assert alerting.load("", '{"since": 1, "told_at": 1, "detail": {}}') is None


def test_details_that_cannot_be_shown_are_left_out() -> None:
    """Only texts and numbers are taken from the store."""
    alert = alerting.load("a/b", '{"since": 1, "told_at": 2, "detail": {"x": "y", "z": []}}')
    assert alert == Alert("a", "b", 1.0, 2.0, (("x", "y"),))
    assert not math.isnan(alert.since)


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ({}, {}, {}),
        ({"a": "1"}, {"a": "1"}, {}),
        ({}, {"a": "1"}, {"a": "1"}),
        ({"a": "1"}, {"a": "2"}, {"a": "2"}),
        ({"a": "1", "b": "1"}, {"b": "1"}, {"a": None}),
    ],
)
def test_only_what_changed_is_written(
    before: dict[str, str], after: dict[str, str], expected: dict[str, str | None]
) -> None:
    """None stands for what has to go."""
    assert alerting.changes(before, after) == expected
