"""Delays between attempts, and the Retry-After header."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twr.core.backoff import Backoff, delay, retry_after

POLICY = Backoff(first=1.0, factor=2.0, max=600.0, jitter=0.2)


@pytest.mark.parametrize(
    ("attempt", "random", "expected"),
    [
        (0, 0.5, 1.0),
        (1, 0.5, 1.0),
        (1, 0.0, 0.8),
        (1, 1.0, 1.2),
        (2, 0.5, 2.0),
        (10, 0.5, 512.0),
        (11, 0.5, 600.0),
        (11, 0.0, 480.0),
        (11, 1.0, 480.0),
        (11, 0.75, 540.0),
        (10**6, 0.5, 600.0),
    ],
)
def test_delay_grows_to_the_maximum(attempt: int, random: float, expected: float) -> None:
    """Each delay doubles the last, jitter spreads it, and none goes above the maximum."""
    assert delay(POLICY, attempt, lambda: random) == pytest.approx(expected)


def test_delay_of_a_constant_policy_does_not_grow() -> None:
    """Factor 1 without jitter waits the same each time, however often."""
    assert delay(Backoff(0.5, 1, 0.5, 0), 10**6, lambda: 0.3) == 0.5


def test_delays_at_the_maximum_stay_spread() -> None:
    """Of a thousand that fail together, no two come back in the same instant."""
    delays = {delay(POLICY, 20, lambda n=n: (n + 0.5) / 2001) for n in range(1000)}  # type: ignore[misc]
    assert len(delays) == 1000


@given(
    st.builds(
        Backoff,
        first=st.floats(0.001, 3600),
        factor=st.floats(1, 100),
        max=st.floats(0.001, 86_400),
        jitter=st.floats(0, 1),
    ),
    st.integers(1, 10**9),
    st.floats(0, 1),
)
def test_delay_stays_within_zero_and_the_maximum(
    policy: Backoff, attempt: int, random: float
) -> None:
    """No policy and no attempt leads out of the range."""
    assert 0 <= delay(policy, attempt, lambda: random) <= policy.max


NOW = 784_111_777.0  # Sun, 06 Nov 1994 08:49:37 GMT
YEAR = 365 * 86_400.0


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, None),
        ("", None),
        ("soon", None),
        ("1e3", None),
        ("٥", None),
        ("5 seconds", None),
        ("0", 0.0),
        ("120", 120.0),
        (" 7 ", 7.0),
        ("1.5", 1.5),
        ("-5", 0.0),
        ("9" * 5000, YEAR),
        ("Sun, 06 Nov 1994 08:49:47 GMT", 10.0),
        ("Sunday, 06-Nov-94 08:49:47 GMT", 10.0),
        ("Sun Nov  6 08:49:47 1994", 10.0),
        ("Sun, 06 Nov 1994 08:49:27 GMT", 0.0),
        ("Sun, 06 Nov 9999 08:49:37 GMT", YEAR),
        ("Sun, 99 Nov 1994 08:49:37 GMT", None),
        ("Sun, 06 Nov 1994 08:49:47 GMT" + " " * 5000 + "x", None),
    ],
)
def test_retry_after_reads_seconds_and_dates(value: str | None, expected: float | None) -> None:
    """Seconds and the three date forms of HTTP count; the past is now, garbage is nothing."""
    assert retry_after(value, NOW) == expected


@given(st.text())
def test_retry_after_reads_anything(value: str) -> None:
    """No header raises or leads out of the range."""
    assert 0.0 <= (retry_after(value, NOW) or 0.0) <= YEAR
