"""What is wrong with the work in the store: routes behind, routes gone, new dead letters."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from pydantic import TypeAdapter, ValidationError

from twr.core.findings import DEAD_LETTERS, ROUTE_BACKLOG, ROUTE_ORPHANED, Finding
from twr.core.jobs import RouteStats, Stats

DEATHS_QUIET = 3600.0
"""Seconds without a new dead letter after which `dead_letters` is over."""


def route_findings(
    stats: Stats, routes: Collection[str], limit: float, firing: Collection[str]
) -> Iterator[Finding]:
    """`route_backlog` and `route_orphaned`.

    `routes` are those of the configuration, `firing` those whose backlog is an alert already:
    one starts with the oldest update over `limit` seconds, and ends with it below half. A route
    that another instance serves is no orphan.
    """
    for route in stats.routes:
        age = _age(stats, route)
        detail = (("waiting", route.waiting), ("oldest_seconds", round(age)))
        if route.name in routes:
            if age >= limit / 2 if route.name in firing else age > limit:
                yield Finding(ROUTE_BACKLOG, route.name, detail)
        elif route.waiting and not route.served(stats.now_ms):
            yield Finding(ROUTE_ORPHANED, route.name, detail)


def _age(stats: Stats, route: RouteStats) -> float:
    return 0.0 if route.oldest_ms is None else max(0, stats.now_ms - route.oldest_ms) / 1000


@dataclass(frozen=True, slots=True)
class Toll:
    """New dead letters of one route and reason: how many of late, and when the last was seen."""

    count: int
    last: float


@dataclass(frozen=True, slots=True)
class Deaths:
    """How many had died at the last look (None: there was none yet), and the news of late.

    Both by `route/reason`.
    """

    died: Mapping[str, int] | None = None
    news: Mapping[str, Toll] = field(default_factory=dict)


_DEATHS = TypeAdapter(Deaths)


def dump_deaths(deaths: Deaths) -> str:
    """`deaths` as JSON."""
    return _DEATHS.dump_json(deaths, exclude_defaults=True).decode()


def load_deaths(text: str | None) -> Deaths:
    """The deaths in `text`; none where it cannot be read."""
    try:
        return _DEATHS.validate_json(text or "{}")
    except ValidationError:
        return Deaths()


def counted(deaths: Deaths, died: Mapping[tuple[str, str], int], now: float) -> Deaths:
    """The deaths after a look at how many ever `died`, by (route, reason).

    What had died before the first look is no news, and fewer than before (a store that lost
    its data) is none either.
    """
    totals = {f"{route}/{reason}": count for (route, reason), count in died.items()}
    news = {name: toll for name, toll in deaths.news.items() if now - toll.last < DEATHS_QUIET}
    if deaths.died is not None:
        for name, count in totals.items():
            fresh = count - deaths.died.get(name, 0)
            if fresh > 0:
                before = news[name].count if name in news else 0
                news[name] = Toll(before + fresh, now)
    return Deaths(totals, news)


def death_findings(deaths: Deaths) -> Iterator[Finding]:
    """`dead_letters`, one for each route and reason with news of late."""
    for subject, toll in deaths.news.items():
        yield Finding(DEAD_LETTERS, subject, (("count", toll.count),))
