"""When a job that may be poison can have its turn."""

from unittest.mock import Mock

import pytest

from twr.core.breaker import Breaker, BreakerPolicy
from twr.services.delivery.route import RouteSecrets, RunningRoute

OPEN_UNTIL = 10.0


def running(**changes: object) -> RunningRoute:
    """A route whose breaker opened at 5 s for 5 s; nothing of it is asked but counts."""
    breaker = Breaker(BreakerPolicy(1, 5.0, 60.0))
    run = RunningRoute(Mock(), RouteSecrets((), None), Mock(), breaker)
    breaker.away(5.0, probe=False)
    for name, value in changes.items():
        setattr(run, name, value)
    return run


@pytest.mark.parametrize(
    ("now", "changes", "offered"),
    [
        (OPEN_UNTIL, {"suspects": 1}, True),
        (OPEN_UNTIL - 1, {"suspects": 1}, False),
        (OPEN_UNTIL, {"suspects": 0}, False),
        (OPEN_UNTIL, {"suspects": 1, "ready": 1}, False),
        (OPEN_UNTIL, {"suspects": 1, "next_due": 99.0}, False),
    ],
)
def test_a_suspect_is_the_probe_where_nothing_else_is(
    now: float, changes: dict[str, object], offered: bool
) -> None:
    """A paused route tries with a suspect once its pause is over, if all else is gone."""
    assert running(**changes).offers_suspect(now) is offered


def test_a_suspect_of_a_route_that_runs() -> None:
    """It has its turn whatever else waits."""
    run = running(suspects=1, ready=5)
    run.breaker.answered(32)
    assert run.offers_suspect(OPEN_UNTIL) is True
