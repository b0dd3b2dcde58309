"""When an alert is told: at once, again every so often, and once when it is over."""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from twr.core.findings import Detail, Finding

Kind = Literal["firing", "repeat", "resolved"]


@dataclass(frozen=True, slots=True)
class Alert:
    """An alert that fires: since when, and when it was last told, in unix seconds."""

    alert: str
    subject: str | None
    since: float
    told_at: float
    detail: Detail = ()

    @property
    def key(self) -> str:
        return key(self.alert, self.subject)


@dataclass(frozen=True, slots=True)
class Notice:
    """Something to tell people. `since` is when the alert began, `at` is now, in unix seconds.

    `instance` is the one whose alert it was, where it is over because that one is gone.
    """

    kind: Kind
    alert: str
    subject: str | None
    detail: Detail
    since: float
    at: float
    instance: str | None = None


Firing = Mapping[str, Alert]
"""The alerts that fire, by key."""


def key(alert: str, subject: str | None) -> str:
    """What tells alerts apart: `alert`, or `alert/subject`."""
    return alert if subject is None else f"{alert}/{subject}"


def step(
    firing: Firing,
    findings: Iterable[Finding],
    judged: Callable[[Alert], bool],
    repeat: float,
    now: float,
) -> tuple[Firing, tuple[Notice, ...]]:
    """The alerts that fire after a look with these findings, and what is to be told.

    An alert without a finding is over only where `judged` says that this look could tell.
    `repeat` is seconds, `now` unix seconds.
    """
    found = {key(finding.alert, finding.subject): finding for finding in findings}
    after: dict[str, Alert] = {}
    notices: list[Notice] = []
    for name, alert in firing.items():
        if name not in found and judged(alert):
            notices.append(over(alert, now))
            continue
        after[name], due = _kept(alert, found.get(name), repeat, now)
        if due:
            notices.append(_notice("repeat", after[name], now))
    for name, finding in found.items():
        if name not in firing:
            after[name] = Alert(finding.alert, finding.subject, now, now, finding.detail)
            notices.append(_notice("firing", after[name], now))
    return after, tuple(notices)


def over(alert: Alert, now: float) -> Notice:
    """What is told once when `alert` is over; its details were told before."""
    return _notice("resolved", replace(alert, detail=()), now)


def _kept(alert: Alert, finding: Finding | None, repeat: float, now: float) -> tuple[Alert, bool]:
    # A clock that was set back must not silence an alert until it has caught up.
    told_at = min(alert.told_at, now)
    due = now - told_at >= repeat
    detail = finding.detail if finding is not None else alert.detail
    return replace(alert, told_at=now if due else told_at, detail=detail), due


def _notice(kind: Kind, alert: Alert, now: float) -> Notice:
    return Notice(kind, alert.alert, alert.subject, alert.detail, alert.since, now)


def dump(alert: Alert) -> str:
    """`alert` as JSON, without what its key says."""
    state = {"since": alert.since, "told_at": alert.told_at, "detail": dict(alert.detail)}
    return json.dumps(state, separators=(",", ":"))


def load(name: str, text: str) -> Alert | None:
    """The alert of the key `name` from its JSON; None where that cannot be read."""
    try:
        state = json.loads(text)
        since, told_at = float(state["since"]), float(state["told_at"])
        detail = _detail(state.get("detail"))
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
        return None
    alert, slash, subject = name.partition("/")
    usable = alert and 0 <= since < _NEVER and 0 <= told_at < _NEVER
    return Alert(alert, subject if slash else None, since, told_at, detail) if usable else None


_NEVER = 1e11


def _detail(value: Any) -> Detail:
    return tuple((str(name), it) for name, it in value.items() if isinstance(it, str | int | float))


def changes(before: Mapping[str, str], after: Mapping[str, str]) -> Mapping[str, str | None]:
    """What has to be written to turn the texts `before` into `after`; None deletes."""
    gone: dict[str, str | None] = {name: None for name in before if name not in after}
    return gone | {name: text for name, text in after.items() if before.get(name) != text}
