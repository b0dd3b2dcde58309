"""Summing up what is said too often."""

from twr.core.flood import Flood, Repeated


def test_the_first_few_pass_and_the_rest_is_told_once() -> None:
    """Five of a kind pass, the other seven become one sum when the window has ended."""
    flood: Flood[str] = Flood(burst=5, window=60)
    admitted = [flood.admit("key", f"line {n}", now=100.0 + n) for n in range(12)]
    assert admitted == [True] * 5 + [False] * 7
    assert flood.due(159.9) == []
    assert flood.due(160.0) == [Repeated("line 11", 7, 60.0)]
    assert flood.due(160.0) == []


def test_keys_do_not_hide_each_other() -> None:
    """A flood of one key lets every other key through."""
    flood: Flood[str] = Flood(burst=1)
    assert [flood.admit("a", "a", 0.0), flood.admit("a", "a", 0.0)] == [True, False]
    assert flood.admit("b", "b", 0.0)


def test_a_lasting_flood_is_two_lines_a_window() -> None:
    """After the first window, one line passes and one sum is told per window."""
    flood: Flood[int] = Flood(burst=5, window=60)
    said = sums = 0
    for second in range(60, 660):
        sums += len(flood.due(float(second)))
        said += flood.admit("key", second, float(second))
    assert (said, sums) == (5 + 9, 9)


def test_a_quiet_window_gives_the_burst_back() -> None:
    """When a window held nothing back, the key starts afresh."""
    flood: Flood[str] = Flood(burst=2, window=60)
    for _ in range(3):
        flood.admit("key", "line", 0.0)
    assert len(flood.due(60.0)) == 1
    assert flood.due(120.0) == []
    assert [flood.admit("key", "line", 121.0) for _ in range(3)] == [True, True, False]


def test_memory_is_bounded_and_no_sum_is_lost() -> None:
    """A key pushed out by newer ones still has its sum told."""
    flood: Flood[str] = Flood(burst=1, window=60, keys=10)
    flood.admit("first", "first", 0.0)
    flood.admit("first", "first", 1.0)
    for n in range(1000):
        flood.admit(n, "other", 2.0)
    assert flood.due(2.0) == [Repeated("first", 1, 2.0)]
    assert len(flood._windows) == 10


def test_the_rest_is_told_at_the_end() -> None:
    """What is held back in a window that never ends is not swallowed."""
    flood: Flood[str] = Flood(burst=1)
    for n in range(3):
        flood.admit("key", f"line {n}", 0.0)
    assert flood.rest(30.0) == [Repeated("line 2", 2, 30.0)]
    assert flood.rest(30.0) == []
