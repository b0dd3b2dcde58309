"""The table of loops that must beat."""

import pytest

from twr.core.beats import Beats


def test_a_loop_is_stale_only_after_its_own_time() -> None:
    """Each loop has its own limit, counted from its last beat."""
    beats = Beats()
    beats.expect("claim shop", within=30, now=0)
    beats.expect("reaper", within=5, now=0)
    beats.beat("claim shop", now=10)
    assert beats.stale(now=5) == ()
    assert beats.stale(now=5.1) == ("reaper",)
    assert beats.stale(now=40.1) == ("claim shop", "reaper")


def test_a_loop_that_never_beat_is_stale_too() -> None:
    """The time runs from the moment the loop was expected."""
    beats = Beats()
    beats.expect("probe", within=10, now=100)
    assert beats.stale(now=111) == ("probe",)


def test_a_beat_clears_staleness() -> None:
    """A loop that comes back is no longer named."""
    beats = Beats()
    beats.expect("probe", within=10, now=0)
    assert beats.stale(now=20) == ("probe",)
    beats.beat("probe", now=20)
    assert beats.stale(now=21) == ()


def test_a_forgotten_loop_is_not_missed() -> None:
    """A loop that ended on purpose is never stale; forgetting twice is harmless."""
    beats = Beats()
    beats.expect("claim old", within=1, now=0)
    beats.forget("claim old")
    beats.forget("claim old")
    assert beats.stale(now=100) == ()


def test_an_unexpected_beat_is_a_mistake() -> None:
    """A misspelt name does not pass in silence."""
    with pytest.raises(KeyError):
        Beats().beat("typo", now=0)
