"""What waits for too long, for nobody, or has died of late."""

import pytest

from twr.core import backlog
from twr.core.backlog import Deaths, Toll
from twr.core.findings import Finding
from twr.core.jobs import RouteStats, Stats

NOW_MS = 1_790_000_000_000
NOW = NOW_MS / 1000


def stats(name: str, waiting: int, age: float | None, served: float = 60.0) -> Stats:
    """One route with so much waiting, the oldest for `age` seconds, served so long ago."""
    oldest = None if age is None else NOW_MS - int(age * 1000)
    served_ms = NOW_MS - int(served * 1000)
    return Stats(NOW_MS, (RouteStats(name, served_ms, waiting, 0, 0, waiting, oldest, 0),), {})


@pytest.mark.parametrize(
    ("age", "firing", "fires"),
    [
        (None, False, False),
        (300.0, False, False),
        (300.001, False, True),
        (299.0, True, True),
        (150.0, True, True),
        (149.999, True, False),
        (None, True, False),
        (-5.0, False, False),
    ],
)
def test_a_backlog_starts_over_the_limit_and_ends_below_half(
    age: float | None, firing: bool, fires: bool
) -> None:
    """So that it does not come and go around the limit."""
    found = backlog.route_findings(
        stats("shop", 3, age), ["shop"], 300.0, ["shop"] if firing else []
    )
    assert [finding.alert for finding in found] == (["route_backlog"] if fires else [])


def test_a_backlog_tells_how_much_and_how_old() -> None:
    """The route is the subject."""
    (finding,) = backlog.route_findings(stats("shop", 3, 700.4), ["shop"], 300.0, [])
    assert finding == Finding("route_backlog", "shop", (("waiting", 3), ("oldest_seconds", 700)))


@pytest.mark.parametrize(("waiting", "fires"), [(0, False), (1, True)])
def test_work_for_a_route_that_is_gone_is_orphaned(waiting: int, fires: bool) -> None:
    """However young it is; a route gone with nothing waiting is no finding."""
    found = list(backlog.route_findings(stats("old", waiting, 1.0), ["shop"], 300.0, []))
    detail = (("waiting", 1), ("oldest_seconds", 1))
    assert found == ([Finding("route_orphaned", "old", detail)] if fires else [])


@pytest.mark.parametrize(("served", "fires"), [(0.0, False), (5.0, False), (5.001, True)])
def test_a_route_that_another_instance_serves_is_no_orphan(served: float, fires: bool) -> None:
    """Its file may have routes that ours has not; what nobody serves any more is one."""
    found = backlog.route_findings(stats("theirs", 3, 1.0, served), ["shop"], 300.0, [])
    assert [finding.alert for finding in found] == (["route_orphaned"] if fires else [])


def test_an_orphan_is_no_backlog_as_well() -> None:
    """One alert for one cause."""
    found = backlog.route_findings(stats("old", 5, 9000.0), ["shop"], 300.0, ["old"])
    assert [finding.alert for finding in found] == ["route_orphaned"]


def test_dead_letters_from_before_the_first_look_are_no_news() -> None:
    """They died before anybody looked."""
    deaths = backlog.counted(Deaths(), {("shop", "expired"): 7}, NOW)
    assert list(backlog.death_findings(deaths)) == []


def test_new_dead_letters_are_counted_by_route_and_reason() -> None:
    """Those that came since the alert began add up."""
    deaths = backlog.counted(Deaths(), {("shop", "expired"): 7}, NOW)
    deaths = backlog.counted(deaths, {("shop", "expired"): 9, ("a", "attempts"): 1}, NOW + 5)
    deaths = backlog.counted(deaths, {("shop", "expired"): 10, ("a", "attempts"): 1}, NOW + 10)
    assert list(backlog.death_findings(deaths)) == [
        Finding("dead_letters", "shop/expired", (("count", 3),)),
        Finding("dead_letters", "a/attempts", (("count", 1),)),
    ]


def test_a_store_that_lost_its_count_is_no_news() -> None:
    """What comes after a fallen count counts from there."""
    deaths = backlog.counted(Deaths(), {("shop", "expired"): 7}, NOW)
    deaths = backlog.counted(deaths, {}, NOW + 5)
    assert list(backlog.death_findings(deaths)) == []
    deaths = backlog.counted(deaths, {("shop", "expired"): 2}, NOW + 10)
    assert list(backlog.death_findings(deaths)) == [
        Finding("dead_letters", "shop/expired", (("count", 2),))
    ]


@pytest.mark.parametrize(("after", "fires"), [(3599.0, True), (3600.0, False)])
def test_dead_letters_are_over_after_an_hour_without(after: float, fires: bool) -> None:
    """Counted from the last one."""
    deaths = backlog.counted(Deaths(), {}, NOW)
    deaths = backlog.counted(deaths, {("shop", "attempts"): 1}, NOW)
    deaths = backlog.counted(deaths, {("shop", "attempts"): 1}, NOW + after)
    assert bool(list(backlog.death_findings(deaths))) is fires


def test_a_restart_neither_forgets_nor_repeats_dead_letters() -> None:
    """What was seen and what is news survive as text."""
    deaths = backlog.counted(Deaths(), {}, NOW)
    deaths = backlog.counted(deaths, {("shop", "attempts"): 1}, NOW)
    again = backlog.load_deaths(backlog.dump_deaths(deaths))
    assert again == deaths
    later = backlog.counted(again, {("shop", "attempts"): 2}, NOW + 60)
    assert list(backlog.death_findings(later)) == [
        Finding("dead_letters", "shop/attempts", (("count", 2),))
    ]
    assert backlog.load_deaths(backlog.dump_deaths(backlog.counted(Deaths(), {}, NOW))).died == {}


def test_what_the_store_held_of_another_count_is_no_count() -> None:
    """The sizes that were kept before are forgotten, what was news of late is not."""
    deaths = backlog.load_deaths(
        '{"seen":{"a/expired":7},"news":{"a/expired":{"count":2,"last":5}}}'
    )
    assert deaths == Deaths(None, {"a/expired": Toll(2, 5.0)})


@pytest.mark.parametrize("text", [None, "", "nonsense", "[]", '{"news": {"a": 1}}'])
def test_deaths_that_cannot_be_read_are_none(text: str | None) -> None:
    """Whatever the store holds, the probe starts."""
    assert backlog.load_deaths(text) == Deaths()
