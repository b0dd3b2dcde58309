"""When a route pauses, how it finds out that its target is back, and how it resumes."""

import pytest

from twr.core.breaker import Breaker, BreakerPolicy

POLICY = BreakerPolicy(failures=3, cooldown=5.0, max_cooldown=60.0)
MANY = 32


def opened(at: float = 100.0) -> Breaker:
    """A breaker that the third failure has just opened."""
    breaker = Breaker(POLICY)
    assert [breaker.away(at, probe=False) for _ in range(3)] == [False, False, True]
    return breaker


def probed(breaker: Breaker, at: float, retry_after: float = 0.0) -> float:
    """Send a probe that finds nobody; the pause that follows."""
    assert breaker.allowance(at, MANY) == 1
    breaker.probe()
    assert not breaker.away(at, probe=True, retry_after=retry_after)
    return breaker.until - at


def test_failures_in_a_row_open_it() -> None:
    """Then nothing may start until the cooldown is over, and then one."""
    breaker = opened(at=100.0)
    assert (breaker.open, breaker.state, breaker.until) == (True, "open", 105.0)
    assert breaker.allowance(104.9, MANY) == 0
    assert breaker.allowance(105.0, MANY) == 1


def test_an_answer_between_them_begins_the_row_anew() -> None:
    """A refusal is an answer like any other."""
    breaker = Breaker(POLICY)
    for _ in range(5):
        breaker.away(100.0, probe=False)
        breaker.away(100.0, probe=False)
        assert not breaker.answered(MANY)
    assert not breaker.open
    assert breaker.allowance(100.0, MANY) == MANY


def test_one_probe_at_a_time() -> None:
    """While it is out nothing else starts, and the state says so."""
    breaker = opened()
    breaker.probe()
    assert breaker.state == "half-open"
    assert breaker.allowance(1000.0, MANY) == 0


def test_a_probe_that_came_to_nothing_frees_its_place() -> None:
    """Another may go at once."""
    breaker = opened(at=100.0)
    breaker.probe()
    breaker.withdraw()
    assert breaker.state == "open"
    assert breaker.allowance(105.0, MANY) == 1


def test_the_pause_doubles_up_to_its_maximum() -> None:
    """Each probe that finds nobody makes it twice as long."""
    breaker = opened(at=0.0)
    assert [probed(breaker, breaker.until) for _ in range(6)] == [10, 20, 40, 60, 60, 60]


def test_a_target_that_asks_for_more_gets_it() -> None:
    """Once: the next pause is a doubled one again."""
    breaker = opened(at=0.0)
    assert probed(breaker, breaker.until, retry_after=300.0) == 300.0
    assert probed(breaker, breaker.until) == 20.0


def test_stragglers_do_not_prolong_the_pause() -> None:
    """What flew before it opened and fails now changes nothing, with a probe out or not."""
    breaker = opened(at=100.0)
    assert not breaker.away(104.0, probe=False)
    assert breaker.until == 105.0
    breaker.probe()
    assert not breaker.away(106.0, probe=False)
    assert (breaker.until, breaker.state) == (105.0, "half-open")


@pytest.mark.parametrize("probing", [True, False])
def test_any_answer_closes_it(probing: bool) -> None:
    """That of the probe, or of a straggler."""
    breaker = opened()
    if probing:
        breaker.probe()
    assert breaker.answered(MANY)
    assert (breaker.open, breaker.state) == (False, "closed")


def test_the_share_grows_from_one() -> None:
    """One more with each answer, until all slots are there again."""
    breaker = opened()
    breaker.answered(4)
    shares = [breaker.allowance(200.0, 4)]
    for _ in range(5):
        breaker.answered(4)
        shares.append(breaker.allowance(200.0, 4))
    assert shares == [1, 2, 3, 4, 4, 4]
    assert breaker.allowance(200.0, MANY) == MANY


def test_closing_forgets_the_doubled_pause() -> None:
    """The next absence begins with the first cooldown, after the whole row."""
    breaker = opened(at=0.0)
    probed(breaker, breaker.until)
    breaker.answered(MANY)
    assert [breaker.away(100.0, probe=False) for _ in range(3)] == [False, False, True]
    assert breaker.until == 105.0


def test_a_late_probe_of_a_closed_breaker_is_one_failure() -> None:
    """A straggler's answer closed it meanwhile."""
    breaker = opened()
    breaker.probe()
    breaker.answered(MANY)
    assert not breaker.away(100.0, probe=True)
    assert not breaker.open
